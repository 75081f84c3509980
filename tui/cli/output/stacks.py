"""`stacks` as text and as JSON. The JSON is an interface; the manual's page `json` documents it."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import msgspec

from ddptop.agent import wire
from ddptop.agent.client.diagnosis.stacks import Stacks
from ddptop.agent.client.frame import Frame
from ddptop.tui.model.diagnosis import hang
from ddptop.tui.model.diagnosis.stacks import places
from ddptop.tui.model.documented import hang_json
from ddptop.tui.views.stacks.lines import text_lines


def text(frame: Frame, taken: Stacks, width: int | None = None) -> list[str]:
    """Return the lines of `stacks`: a hang first, then the places of the ranks, which are cut to a width."""
    verdict = _verdict(frame, taken)
    head = [] if verdict is None else [verdict.text]
    if taken.recorded:
        at = time.strftime("%H:%M:%S", time.localtime(taken.at))
        head.append(f"as recorded at {at}, in the hang; the run is over ({frame.state})")
    elif verdict is not None:
        head += filter(None, (hang.countdown(frame, verdict), hang.remedy(frame)))
    found = places(taken, _culprits(verdict))
    return [*head, *([""] if head else []), *text_lines(found, width)]


def as_json(frame: Frame, taken: Stacks) -> dict[str, Any]:
    """Return the documented form of `stacks --json`: all stacks of the ranks, nothing merged or folded."""
    verdict = _verdict(frame, taken)
    ordered = sorted(taken.inspections, key=lambda each: each.rank)
    return {
        "run": frame.run,
        "at": round(taken.at, 3),
        "recorded": taken.recorded,
        "hang": None if verdict is None else {"text": verdict.text, **(hang_json(verdict.hang) or {})},
        "places": [list(place.ranks) for place in places(taken, _culprits(verdict))],
        "ranks": [_named(each) for each in ordered],
        "missing": [{"rank": rank, "reason": reason} for rank, reason in sorted(taken.unknown.items())],
    }


def _verdict(frame: Frame, taken: Stacks) -> wire.Verdict | None:
    """Return the verdict of the present hang, or of the one in which the stacks were recorded."""
    return hang.last(frame) or taken.verdict


def _culprits(verdict: wire.Verdict | None) -> Collection[int]:
    return () if verdict is None else hang.accused(verdict)


def _named(value: object) -> Any:
    """Return a struct of the wire as a mapping with the names of its fields; times are in seconds, empty texts null."""
    if isinstance(value, msgspec.Struct):
        return dict(_field(name, getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, tuple):
        return [_named(each) for each in value]
    return value


def _field(name: str, value: object) -> tuple[str, Any]:
    if name == "at_ns" and isinstance(value, int):
        return "at", value / 1e9
    if name == "open_ns" and isinstance(value, int):
        return "open_s", value / 1e9
    return name, None if value == "" else _named(value)
