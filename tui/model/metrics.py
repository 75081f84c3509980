"""The numbers of a rank: how the table, the screen of a rank, heatmaps and plots have each of them.

Light to import: what draws lists them before any array is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Final

from ddptop.agent.client.frame import Frame
from ddptop.agent.wire.frames import RankFrame
from ddptop.agent.wire.steps.numbers import CUSTOM, OVER_TIME, RECORDED
from ddptop.tui.drawing import units

Value = Callable[[RankFrame], float | None]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a rank."""

    name: str
    """In the history, if it is there: in `RECORDED` or `OVER_TIME`."""
    title: str
    """In words."""
    unit: str
    """`ms`, `bytes`, `%` of a number from 0 to 1, or nothing."""
    value: Value = lambda rank: None
    """Its value now."""
    column: str = ""
    """Title of its column in the table; empty where it has none."""
    cell: Callable[..., str] = units.milliseconds
    """The text of a value in that column."""
    width: int = 6
    """Cells of the column."""
    importance: int = 9
    """Where there is no room for all columns, the one with the highest number goes first."""
    meaning: str = ""
    """In the list of columns; empty where its title says it."""
    key: str = ""
    """Of the column, as settings have it; empty where that is its name."""
    is_of: Callable[[Frame], bool] = lambda frame: True
    """False for runs in which no rank has it."""
    fact: str = ""
    """What follows the number on the screen of a rank, among those of its step; empty where it is not there, or in a
    line with others."""

    def text(self, value: float) -> str:
        """Return a value with its unit, at most ten cells."""
        if self.unit == "bytes":
            return units.size(round(value))
        if self.unit == "ms":
            return f"{units.milliseconds(value)} ms"
        if self.unit == "%":
            return units.share(value)
        return units.loss(value)


def phase_ms(phase: str) -> Value:
    """Return what tells the time of a rank in a phase."""
    return lambda rank: None if rank.phases_ms is None else rank.phases_ms.get(phase)


def own_ms(rank: RankFrame) -> float | None:
    """Return a rank's own time: its step without waiting for others."""
    step_ms, wait = rank.current_step_ms, (rank.phases_ms or {}).get("wait")
    return None if wait is None or step_ms is None else step_ms - wait


def load_of(rank: RankFrame) -> tuple[str, float | None]:
    """Return what the rank computes on, `cpu` or `gpu`, and its load in percent."""
    return ("cpu", rank.cpu_percent) if rank.device_percent is None else ("gpu", rank.device_percent)


def _phase(phase: str, column: str, importance: int) -> Metric:
    meaning = f"{phase} of a step, ms"
    return Metric(phase, phase, "ms", phase_ms(phase), column, units.short_milliseconds, 4, importance, meaning)


TIMES: Final = (
    Metric("step", "step time", "ms", attrgetter("current_step_ms"), "step ms", width=7, importance=2,
           meaning="time of a step, ms", key="step_ms"),
    Metric("own", "own time (step without wait)", "ms", own_ms, "own ms", importance=3,
           meaning="a step without waiting for others, ms"),
    _phase("data", "data", 5),
    replace(_phase("copy", "copy", 5), is_of=lambda frame: "copy" in (frame.phases_ms or {})),
    _phase("forward", "fwd", 5),
    _phase("backward", "bwd", 5),
    _phase("optimizer", "opt", 8),
    replace(_phase("wait", "wait", 4), title="wait in collectives"),
    _phase("other", "oth", 9),
)  # fmt: skip
"""The parts of a step, in the order of their columns."""
OTHERS: Final = (
    Metric("loss", "loss", "", attrgetter("loss"), "loss", units.loss, 7, 3, "last loss"),
    Metric("all_reduce", "all-reduce latency, median of the calls", "ms", attrgetter("collective_ms.p50"), "ar p50",
           importance=11, meaning="all-reduce latency, median, ms", key="p50"),
    Metric("p99", "", "ms", attrgetter("collective_ms.p99"), "ar p99", importance=10,
           meaning="all-reduce latency, p99, ms"),
    Metric("samples", "samples per second", "", attrgetter("samples_per_s"), "smpl/s", units.rate, 6, 11,
           "samples a second", fact=" samples/s"),
    Metric("tokens", "tokens per second", "", attrgetter("tokens_per_s"), "tok/s", units.rate, 6, 11,
           "tokens a second", is_of=lambda frame: frame.tokens_per_s is not None, fact=" tokens/s"),
    Metric("mfu", "MFU (work of the model as a part of the device's peak)", "%", attrgetter("mfu"), "MFU", units.share,
           6, 9, "work of the model as a part of the device's peak", is_of=lambda frame: frame.mfu is not None),
    Metric("learning_rate", "learning rate", ""),
    Metric("memory", "memory", "bytes", attrgetter("memory_bytes"), "memory", units.size, 8, 6,
           "memory of device or process"),
    Metric("load", "", "", lambda rank: load_of(rank)[1], "load", partial(units.percent, width=5), 5, 7,
           "load of the GPU, or CPU (100% is a core)"),
)  # fmt: skip
"""All other numbers, likewise."""

_NAMED: Final = {metric.name: metric for metric in (*TIMES, *OTHERS)}
METRICS: Final[Mapping[str, Metric]] = {name: _NAMED[name] for name in OVER_TIME if name in _NAMED}
"""Those over time, in the order in which they are gone through."""


def offered(names: Iterable[str]) -> list[Metric]:
    """Return all that can be plotted: what is recorded of every step, and what the script gives under these names."""
    return [metric_named(name) for name in (*RECORDED, *(CUSTOM + name for name in names))]


def metric_named(name: str) -> Metric:
    """Return what a name of the history stands for; one of the script's own has no unit."""
    return Metric(name, name.removeprefix(CUSTOM), "") if name.startswith(CUSTOM) else _NAMED[name]
