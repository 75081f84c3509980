"""The numbers of a rank's steps: the means that summaries and frames have of them, and those that a history has.

Light to import: whoever draws lists them before any array is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from ddptop.agent.wire.telemetry import PHASES, Step, Summary

SPANS: Final = (*PHASES, "starved")
"""Times of a step: of each, a `Step` has a field like `starved_ns`, a `Summary` the mean in a field of that name, and a
frame may have one like `starved_ms`; it has the phases in one."""
AMOUNTS: Final = ("samples", "tokens")
"""Amounts of which a step makes so many, and a `Summary` has the mean; the frames of
rank and run have so many a second: `samples_per_s`."""
SPAN_FIELDS: Final = tuple(f"{span}_ns" for span in SPANS)

_Told: TypeAlias = Step | Summary


class Number(NamedTuple):
    """A number that the history has of every step. NaN: not known; infinite: not finite."""

    name: str
    of_step: Callable[[Step], float]
    of_summary: Callable[[Summary], float]


def _alike(name: str, value: Callable[[_Told], float]) -> Number:
    """Return a number that step and summary have in a field of the same name."""
    return Number(name, value, value)


def _plain(field: str) -> Callable[[_Told], float]:
    read = attrgetter(field)

    def value(told: _Told) -> float:
        found = read(told)
        # A value that is NaN is known, and not finite.
        return math.nan if found is None else found if found == found else math.inf

    return value


def _ms(field: str) -> Callable[[_Told], float]:
    read = attrgetter(field)

    def value(told: _Told) -> float:
        found = read(told)
        return math.nan if found is None else found / 1e6

    return value


def _per_s(field: str) -> Callable[[_Told], float]:
    read = attrgetter(field)

    def value(told: _Told) -> float:
        found = read(told)
        return math.nan if found is None or not told.wall_ns else found / told.wall_ns * 1e9

    return value


def _other(told: _Told) -> float:
    # A history has no number for copies.
    return (told.other_ns + (told.copy_ns or 0)) / 1e6


def _all_reduce(step: Step) -> float:
    """Return the median of the step's all-reduces, in ms."""
    known = [call.duration_ns for call in step.collectives if call.op.startswith("all_reduce")]
    took = sorted(duration for duration in known if duration is not None)
    return (took[(len(took) - 1) // 2] + took[len(took) // 2]) / 2e6 if took else math.nan


NUMBERS: Final = (
    _alike("loss", _plain("loss")),
    _alike("step", _ms("wall_ns")),
    _alike("data", _ms("data_ns")),
    _alike("forward", _ms("forward_ns")),
    _alike("backward", _ms("backward_ns")),
    _alike("optimizer", _ms("optimizer_ns")),
    _alike("wait", _ms("wait_ns")),
    _alike("other", _other),
    Number("all_reduce", _all_reduce, _ms("p50_ns")),
    _alike("samples", _per_s("samples")),
    _alike("tokens", _per_s("tokens")),
    Number("learning_rate", _plain("lr"), lambda summary: math.nan),
)
RECORDED: Final = (*(number.name for number in NUMBERS), "mfu", "memory")
"""The names of all numbers of every step over the whole run, in the order of the plot's choice; the last two are made
of what heartbeats say."""
CUSTOM: Final = "log."
"""Before the name of a value that the script itself gives."""
MOST_NAMES: Final = 64
"""Names of values given by the script that are taken in; values by further names are counted."""

OVER_TIME: Final = (
    "own", "step", "wait", "data", "forward", "backward", "optimizer", "other", "loss", "memory", "number",
)  # fmt: skip
"""The numbers over time, in the order in which a heatmap goes through them; `number` is that of the step."""
WIDTHS_S: Final = (1, 4, 16, 64)
"""Widths of the columns in which numbers over time are drawn, in seconds."""
MOST_COLUMNS: Final = 512
"""Columns over time that are drawn at once, at most."""
_LEAST_COLUMNS: Final = 64
_MOST_SECONDS: Final = 1 << 18
"""Columns over time of all ranks together, as far as `_LEAST_COLUMNS` allows."""


def columns_for(world: int) -> int:
    """Return how many columns over time there are of each width, of so many ranks."""
    return max(_LEAST_COLUMNS, min(MOST_COLUMNS, _MOST_SECONDS // max(1, world)))
