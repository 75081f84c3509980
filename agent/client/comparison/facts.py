"""The circumstances of a run that decide whether its numbers can be compared with another's. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from ddptop.agent.client.frame import Frame
from ddptop.agent.client.runs import Record
from ddptop.agent.text import clean_line, plural

UNKNOWN: Final = "–"
_SAME: Final = 0.01
"""Part by which the work of a step may differ where the model is the same."""


@dataclass(frozen=True)
class Facts:
    """The circumstances of one run, each as it is shown; empty: not known."""

    program: str = ""
    commit: str = ""
    arguments: str = ""
    variables: str = ""
    world: str = ""
    hosts: str = ""
    device: str = ""
    backend: str = ""
    torch: str = ""
    python: str = ""
    batch: str = ""
    injected: str = ""
    sent_bytes: float = math.nan
    """Bytes of a rank's collectives in a step."""
    flops: float = math.nan
    """Operations of a step, for each sample where these are known."""

    def rows(self) -> Iterable[tuple[str, str]]:
        """Yield the names and the texts."""
        return ((each.name, text) for each in fields(self) if isinstance(text := getattr(self, each.name), str))


def facts_of(record: Record, frame: Frame, values: Mapping[str, npt.NDArray[np.float64]], sent: float) -> Facts:
    """Return the circumstances of a run by its record, its last frame and the numbers of its steps.

    Args:
        record: how it was launched.
        frame: how it is now, or was at its end.
        values: numbers of its steps, (ranks, steps); samples are a second, times in ms.
        sent: bytes of a rank's collectives in a step.
    """
    hosts = sorted({str(each) for each in frame.values("host") if each})
    batch = math.nan
    if "samples" in values and "step" in values and values["samples"].size:
        with np.errstate(invalid="ignore"):
            each = values["samples"] * values["step"] / 1e3
        batch = float(np.median(each[np.isfinite(each)])) if np.isfinite(each).any() else math.nan
    flops = [each for each in frame.values("flops") if each]
    work = float(np.median(flops)) if flops else math.nan
    return Facts(
        program=record.program,
        commit=_commit(record),
        arguments=clean_line(" ".join(record.arguments), 500),
        variables=clean_line(" ".join(f"{name}={value}" for name, value in sorted(record.environment.items())), 500),
        world=plural(record.world, "rank"),
        hosts=", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else ""),
        device=_one(frame.values("device")) or record.device or "",
        backend=frame.backend or record.backend or "",
        torch=_one(frame.values("torch_version")),
        python=_one(frame.values("python_version")),
        batch="" if math.isnan(batch) else f"{batch:.0f} a rank",
        injected=record.injected,
        sent_bytes=sent,
        flops=work if math.isnan(batch) or batch < 1 else work / batch,
    )


def _commit(record: Record) -> str:
    changed = {True: " and changes", False: "", None: ""}[record.dirty]
    return f"{record.commit[:12]}{changed}" if record.commit else ""


def _one(values: Iterable[str | None]) -> str:
    # `cuda:0` and `cuda:1` are the same device of two ranks.
    return ", ".join(sorted({str(each).partition(":")[0] for each in values if each}))


def differences(first: Facts, second: Facts) -> list[tuple[str, str, str]]:
    """Return what differs: its name, and the text of each run. What is known of one run alone differs, too."""
    pairs = zip(first.rows(), second.rows(), strict=True)
    return [(name, one or UNKNOWN, other or UNKNOWN) for (name, one), (_, other) in pairs if one != other]


def obstacle(first: Facts, second: Facts) -> str:
    """Return why two runs cannot be compared; empty where they can."""
    if first.world != second.world:
        return f"another world: {first.world}, {second.world}"
    if (apart := _apart(first.flops, second.flops)) is not None:
        if apart:
            return f"another model: {_many(first.flops)} and {_many(second.flops)} operations a sample"
        return ""
    if _apart(first.sent_bytes, second.sent_bytes):
        return f"another model: {_many(first.sent_bytes)}B and {_many(second.sent_bytes)}B sent a step"
    if first.program.rpartition("/")[2] != second.program.rpartition("/")[2]:
        return f"another program: {first.program}, {second.program}"
    return ""


def _apart(first: float, second: float) -> bool | None:
    """Say whether two numbers differ; None where one is not known."""
    if not (first > 0 and second > 0):
        return None
    return abs(first - second) > _SAME * max(first, second)


def _many(number: float) -> str:
    for least, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= least:
            return f"{number / least:.3g} {unit}"
    return f"{number:.3g} "
