"""The circumstances of a run that decide whether its numbers can be compared with another's. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ddptop.agent.client.frame import Frame
from ddptop.agent.client.runs import Record
from ddptop.agent.launcher.machine import BACKEND_VARIABLE
from ddptop.agent.run.switches.injection import VARIABLE as INJECTED
from ddptop.agent.text import clean_line, plural

UNKNOWN: Final = "–"
_OURS: Final = frozenset({BACKEND_VARIABLE, INJECTED})
"""Variables of a launch that say again what stands there already."""
_SAME: Final = 0.01
"""Part by which the work of a step may differ where the model is the same."""


@dataclass(frozen=True)
class Facts:
    """The circumstances of one run."""

    shown: Mapping[str, str]
    """By name, each as it is shown; empty: not known."""
    sent_bytes: float = math.nan
    """Bytes of a rank's collectives in a step."""
    flops: float = math.nan
    """Operations of a step, for each sample where these are known."""


def facts_of(record: Record, frame: Frame, batch: float, sent: float) -> Facts:
    """Return the circumstances of a run by its record, its last frame and the work of its steps.

    Args:
        record: how it was launched.
        frame: how it is now, or was at its end.
        batch: samples of a rank's step.
        sent: bytes of a rank's collectives in a step.
    """
    hosts = sorted({str(each) for each in frame.values("host") if each})
    flops = [each for each in frame.values("flops") if each]
    work = float(np.median(flops)) if flops else math.nan
    changes = " and changes" if record.dirty else ""
    shown = {
        "program": record.program,
        "commit": f"{record.commit[:12]}{changes}" if record.commit else "",
        "arguments": clean_line(" ".join(record.arguments), 500),
        "variables": clean_line(
            " ".join(f"{name}={value}" for name, value in sorted(record.environment.items()) if name not in _OURS), 500
        ),
        "world": plural(record.world, "rank"),
        "hosts": ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else ""),
        "device": _one(frame.values("device")) or record.device or "",
        "backend": frame.backend or record.backend or "",
        "torch": _one(frame.values("torch_version")),
        "python": _one(frame.values("python_version")),
        "batch": "" if math.isnan(batch) else f"{batch:.0f} a rank",
        "faults": record.injected,
    }
    return Facts(shown, sent, work if math.isnan(batch) or batch < 1 else work / batch)


def _one(values: Iterable[str | None]) -> str:
    # `cuda:0` and `cuda:1` are the same device of two ranks.
    return ", ".join(sorted({str(each).partition(":")[0] for each in values if each}))


def differences(first: Facts, second: Facts) -> list[tuple[str, str, str]]:
    """Return what differs: its name, and the text of each run. What is known of one run alone differs, too."""
    pairs = ((name, one, second.shown[name]) for name, one in first.shown.items())
    return [(name, one or UNKNOWN, other or UNKNOWN) for name, one, other in pairs if one != other]


def obstacle(first: Facts, second: Facts) -> str:
    """Return why two runs cannot be compared; empty where they can."""
    if (world := first.shown["world"]) != second.shown["world"]:
        return f"another world: {world}, {second.shown['world']}"
    if (apart := _apart(first.flops, second.flops, "", "operations a sample")) is not None:
        # The same work for a sample is the same model, whatever its script is called.
        return apart
    if apart := _apart(first.sent_bytes, second.sent_bytes, "B", "sent a step"):
        return apart
    one, other = first.shown["program"], second.shown["program"]
    return "" if one.rpartition("/")[2] == other.rpartition("/")[2] else f"another program: {one}, {other}"


def _apart(first: float, second: float, unit: str, of: str) -> str | None:
    """Return by which work two models differ, empty where they do not; None where one is not known."""
    if not (first > 0 and second > 0):
        return None
    if abs(first - second) <= _SAME * max(first, second):
        return ""
    return f"another model: {_many(first)}{unit} and {_many(second)}{unit} {of}"


def _many(number: float) -> str:
    for least, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= least:
            return f"{number / least:.3g} {unit}"
    return f"{number:.3g} "
