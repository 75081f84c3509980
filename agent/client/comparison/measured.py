"""The numbers of one run's steps, and those among them that are usual ones. Pure: arrays in, arrays out.

Left out are the steps that are not the training at its usual pace: the first ones of each start (warm-up), those in
which an evaluation or a checkpoint took its time, and those beside a pause or another hold of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ddptop.agent.client.comparison.facts import Facts
from ddptop.agent.client.history.columns import mean_of_ranks
from ddptop.agent.record.history.series import Floats as Floats
from ddptop.agent.record.history.series import Series as Series
from ddptop.agent.record.history.series import Whole as Whole
from ddptop.agent.record.history.series import joined
from ddptop.agent.text import plural

Where = npt.NDArray[np.bool_]

AXES: Final = ("steps", "samples", "seconds")
"""Over what the curves of runs are drawn."""
WARM_UP: Final = 10
"""First steps of each start that are left out at least."""
MOST_WARM_UP: Final = 0.25
"""Part of the steps that is left out at most, as long as they are still becoming faster."""
SOUND: Final = frozenset({"finished", "stopped"})
"""Ends of a run that are counted as good ones."""
_STILL: Final = 1.25
"""Times the usual step that the median of `WARM_UP` steps may take once the warm-up is over."""
_LONG: Final = 1.0
"""Usual steps by which the phase `other` is longer than usual in a step with an evaluation or a checkpoint."""
_BESIDE: Final = 2
"""Steps that end after an action of ours and are left out."""
_GAP_S: Final = 0.05
"""Seconds between two steps from which on they are a pause."""


@dataclass(frozen=True)
class Measured:
    """What the record of one run says of its steps."""

    name: str
    facts: Facts
    steps: Whole
    """Numbers of the newest steps that are recorded one by one, counted on over restarts."""
    at: Floats
    """When each ended on the last rank, in seconds since the epoch."""
    values: Mapping[str, Floats]
    """By name, one of `wire.steps.numbers.RECORDED`: (ranks, steps), NaN where it is not known."""
    batch: float
    """Samples of a step of all ranks; NaN where they are not known."""
    wait: Floats
    """Of some of the newest steps, ms in which a rank's collectives waited for the last rank: the mean over ranks."""
    transfer: Floats
    """The same, ms after that until they were done."""
    restarts: tuple[int, ...]
    """Steps after which the group was started anew."""
    marks: tuple[float, ...]
    """When somebody acted on the run, in seconds since the epoch."""
    curves: Mapping[str, Series]
    """The same numbers over the whole run, those that are known: the mean over its ranks, in columns of some steps."""
    begun_at: float
    """When it was launched, in seconds since the epoch."""
    stalled_s: float
    """Seconds for which it has hung, as its verdicts have it."""
    newest: int
    """The last step of any rank."""
    state: str
    trouble: str
    """What has died, though the run may be counted as finished, as the end of a sentence; empty where nothing did."""
    unheard: tuple[int, ...]
    """Ranks that have left no word of their end."""
    broken_at: int | None
    """The first step by which the loss of a rank was NaN or infinite; None: it never was."""

    def of(self, name: str) -> Floats:
        """Return a number of each step, the mean over the ranks that know it; NaN where none does."""
        table = self.values.get(name)
        return np.full(len(self.steps), np.nan) if table is None else mean_of_ranks(table)

    @property
    def world(self) -> int:
        """Number of its ranks."""
        return max((len(table) for table in self.values.values()), default=1)


class Steady(NamedTuple):
    """The usual steps of a run."""

    where: Where
    """Of the steps of a `Measured`."""
    left_out: list[str]
    """What was left out, a few words each."""


def steady(run: Measured) -> Steady:
    """Return the usual steps of a run, and what was left out."""
    wall, other = run.of("step"), run.of("other")
    count = len(run.steps)
    known = np.isfinite(wall)
    warm, long, beside = (np.zeros(count, bool) for _ in range(3))
    if known.any():
        usual = float(np.median(wall[known]))
        starts = [0 if not count or run.steps[0] == 1 else -1]
        starts += [int(np.searchsorted(run.steps, step, side="right")) for step in run.restarts]
        for start, end in zip(starts, [*starts[1:], count], strict=True):
            if 0 <= start < end:
                warm[start : start + _warm_up(wall[start:end], usual)] = True
        if np.isfinite(other).any():
            excess = other - np.nanmedian(other)
            long = known & ~warm & (excess > _LONG * usual)
        for mark in run.marks:
            first = int(np.searchsorted(run.at, mark))
            beside[first : first + _BESIDE] = True
        gaps = np.flatnonzero(_held(run) > 0)
        for step in (gaps, gaps + 1):
            beside[step[step < count]] = True
        beside &= ~warm & ~long
    words = {"of warm-up": warm, "with an evaluation or a checkpoint": long, "beside a pause or a hold": beside}
    left_out = [f"{plural(int(each.sum()), 'step')} {text}" for text, each in words.items() if each.any()]
    if run.newest > count:
        left_out.append(f"{plural(run.newest - count, 'step')} not recorded one by one")
    return Steady(known & ~warm & ~long & ~beside, left_out)


def _warm_up(wall: Floats, usual: float) -> int:
    """Return how many of the first steps are slower than later ones because they are the first."""
    most = max(WARM_UP, int(MOST_WARM_UP * len(wall)))
    for begin in range(WARM_UP, most, WARM_UP):
        if np.nanmedian(wall[begin : begin + WARM_UP]) <= _STILL * usual:
            return begin
    return most if len(wall) > WARM_UP else min(WARM_UP, len(wall))


def _held(run: Measured) -> Floats:
    """Return the seconds before each step in which the ranks made none, neither this one nor another: a pause.

    A step's record has no time in which the rank was held. Only steps that follow each other tell.
    """
    held = np.zeros(len(run.steps))
    if len(run.steps) > 1:
        wall = run.of("step") / 1e3
        gap = np.diff(run.at) - wall[1:]
        follows = (np.diff(run.steps) == 1) & np.isfinite(gap) & (gap > np.maximum(_GAP_S, wall[1:]))
        held[1:][follows] = gap[follows]
    return held


def lost(run: Measured) -> dict[str, float]:
    """Return the seconds that a run has lost, those of pauses and restarts by its steps."""
    held = _held(run)
    restarted = np.isin(run.steps, np.array(run.restarts, np.int64) + 1)
    return {
        "stalls": run.stalled_s, "restarts": float(held[restarted].sum()), "pauses": float(held[~restarted].sum()),
    }  # fmt: skip


class Beside:
    """The curves of some runs, as a plot reads the numbers of ranks: each run in the place of one."""

    problem = ""
    names: Sequence[str] = ()

    def __init__(self, runs: Sequence[Measured], over: str) -> None:
        """Show the curves over one of `AXES`."""
        self._runs = runs
        self._over = self.records = over
        """Where these are others, there is something new to draw."""
        self.complete = bool(runs)

    def span(self, rank: int) -> tuple[int, int] | None:
        """Return the first and the last place on the axis of a run, None where it has none."""
        along = self._along(self._runs[rank], "step") if self.complete else np.empty(0)
        return None if not len(along) else (max(1, int(along[0])), max(1, int(along[-1])))

    def read_many(self, ranks: Sequence[int], metric: str, first: float, last: float) -> tuple[Whole, Series]:
        """Return whose each column is, and a number of these runs."""
        found, whose = [], []
        for rank in ranks:
            if (curve := self._runs[rank].curves.get(metric)) is not None:
                # A place of an axis is a whole number, from 1.
                along = np.maximum(1, np.rint(self._along(self._runs[rank], metric)))
                found.append(replace(curve, steps=along).part((along >= first) & (along <= last)))
                whose.append(np.full(len(found[-1].steps), rank, np.int64))
        return np.concatenate(whose) if whose else np.empty(0, np.int64), joined(found)

    def _along(self, run: Measured, metric: str) -> Floats:
        curve = run.curves.get(metric)
        if curve is None or not len(curve.steps):
            return np.empty(0)
        if self._over == "seconds":
            return curve.at - run.begun_at
        return curve.steps * run.batch if self._over == "samples" else curve.steps
