"""The numbers that can be drawn over ranks and time: their titles and units.

Light to import: what draws lists them before any array is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ddptop.agent.wire.numbers import CUSTOM, RECORDED, WIDTHS_S
from ddptop.tui.drawing import units

__all__ = ["CUSTOM", "METRICS", "RECORDED", "WIDTHS_S", "Metric", "metric_named", "offered"]


@dataclass(frozen=True)
class Metric:
    """One number of a rank over time."""

    name: str
    title: str
    unit: str
    """`ms`, `bytes`, `%` of a number from 0 to 1, or nothing."""

    def text(self, value: float) -> str:
        """Return a value with its unit, at most ten cells."""
        if self.unit == "bytes":
            return units.size(round(value))
        if self.unit == "ms":
            return f"{units.milliseconds(value)} ms"
        if self.unit == "%":
            return units.share(value)
        return units.loss(value)


METRICS: Final = {
    metric.name: metric
    for metric in (
        Metric("own", "own time (step without wait)", "ms"),
        Metric("step", "step time", "ms"),
        Metric("wait", "wait in collectives", "ms"),
        Metric("data", "data", "ms"),
        Metric("forward", "forward", "ms"),
        Metric("backward", "backward", "ms"),
        Metric("optimizer", "optimizer", "ms"),
        Metric("other", "other", "ms"),
        Metric("loss", "loss", ""),
        Metric("memory", "memory", "bytes"),
    )
}
"""In the order in which they are gone through."""

_RECORDED_ONLY: Final = {
    metric.name: metric
    for metric in (
        Metric("all_reduce", "all-reduce latency, median of the calls", "ms"),
        Metric("samples", "samples per second", ""),
        Metric("tokens", "tokens per second", ""),
        Metric("learning_rate", "learning rate", ""),
        Metric("mfu", "MFU (work of the model as a part of the device's peak)", "%"),
    )
}


def offered(names: Iterable[str]) -> list[Metric]:
    """Return all that can be plotted: what is recorded of every step, and what the script gives under these names."""
    return [metric_named(name) for name in (*RECORDED, *(CUSTOM + name for name in names))]


def metric_named(name: str) -> Metric:
    """Return what a name of the history stands for; one of the script's own has no unit."""
    if name.startswith(CUSTOM):
        return Metric(name, name.removeprefix(CUSTOM), "")
    return METRICS.get(name) or _RECORDED_ONLY[name]
