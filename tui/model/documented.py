"""The documented JSON of events and verdicts, the same in `events`, `status` and `report`.

The JSON is an interface; the manual's page `json` documents it.
"""

from __future__ import annotations

import math
from typing import Any

from ddptop.agent import wire
from ddptop.tui.drawing.units import significant


def event_json(event: wire.Event) -> dict[str, Any]:
    """Return the documented form of an event; empty texts are null."""
    return {
        "at": event.at_ns / 1e9,
        "level": event.level,
        "rank": event.rank,
        "action": event.action or None,
        "who": event.who or None,
        "text": event.text,
    }


def interval_json(verdict: wire.Verdict) -> dict[str, Any]:
    """Return the documented form of a verdict among the events: the fields of an event, and those of the interval."""
    until = verdict.until_at_ns
    return {
        **event_json(as_event(verdict)),
        "since": verdict.since_at_ns / 1e9,
        "until": None if until is None else until / 1e9,
        "kind": verdict.kind,
        "phase": verdict.phase,
        "cost_ms": number(verdict.cost_ms),
        "share": number(verdict.share),
        "hang": hang_json(verdict.hang),
        "host": verdict.host or None,
        **_line_json(verdict),
    }


def as_event(verdict: wire.Verdict) -> wire.Event:
    """Return the line of a verdict among the events."""
    return wire.Event(verdict.told_at_ns, verdict.ageless, verdict.rank, verdict.level)


def _line_json(verdict: wire.Verdict) -> dict[str, Any]:
    return {
        "line": verdict.line or None,
        "line_ms": verdict.line_ms,
        "line_share": verdict.line_share,
        "cause": verdict.cause or None,
    }


def verdict_json(verdict: wire.Verdict) -> dict[str, Any]:
    """Return the documented form of a verdict of this moment."""
    names = ("kind", "rank", "phase", "cost_ms", "share", "since_step", "confidence", "text")
    found = {name: getattr(verdict, name) for name in names}
    found |= {
        "since": verdict.since_at_ns / 1e9,
        "every": verdict.every,
        "hang": hang_json(verdict.hang),
        "host": verdict.host or None,
        **_line_json(verdict),
    }
    return {name: number(value) if isinstance(value, float) else value for name, value in found.items()}


def hang_json(hang: wire.Hang | None) -> dict[str, Any] | None:
    """Return the documented form of what is known of a hang."""
    if hang is None:
        return None
    return {
        "class": hang.kind,
        "ranks": list(hang.ranks),
        "where": hang.where or None,
        "waiting": hang.waiting or None,
        "evidence": hang.evidence or None,
        "sure": hang.sure,
        "timeout_at": None if hang.timeout_at_ns is None else hang.timeout_at_ns / 1e9,
        "timeout_of": hang.timeout_of or None,
    }


def number(value: float | None) -> float | None:
    """Return a number as JSON has it."""
    # JSON has no NaN and no infinity.
    if value is None or not math.isfinite(value):
        return None
    return round(value, 6) if abs(value) >= 1 else float(significant(value, 6))
