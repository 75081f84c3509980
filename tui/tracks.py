"""Every rank's numbers over time, in buckets: what the heatmap and the histories draw.

Pure, and the only arrays that live: a bounded ring for each rank at a few bucket widths,
written by the store alone.  Step records and ready-made means fill it alike.  A bucket holds
the mean of the steps that ended in it; a step longer than a bucket fills those it lasted for.
Imports NumPy, so it is loaded only where something is to be drawn from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import add
from typing import Final

import numpy as np
import numpy.typing as npt

from ddptop.agent.wire import Step
from ddptop.tui.metrics import WIDTHS_S

Array = npt.NDArray[np.float32]

_READING_NS: Final = 2_000_000_000
"""A reading of the memory, taken once a second, stands for the time before it."""
_WRITTEN_AT_ONCE: Final = 4096
_LAST_NS: Final = 4_000_000_000 * 10**9
"""Moments beyond this, in the year 2096, are no honest clock's; buckets before it fit 32 bits."""
_MS: Final = np.float32(1e-6)

MEMORY_BYTES: Final = 64 << 20
"""What all rings of a run may take."""
MOST_COLUMNS: Final = 512
LEAST_COLUMNS: Final = 64
"""Also where many ranks then take more than `MEMORY_BYTES`: 4 bytes x 11 numbers x 4 widths x 64 = 11 KiB a rank."""

STEP_FIELDS: Final = ("number", "step", "data", "forward", "backward", "optimizer", "wait", "loss")
"""What is kept of steps; each is a mean of its own sum and of the count that `_DIVISORS` names."""
_DIVISORS: Final = (0, 0, 0, 0, 0, 0, 0, 9)
"""Sums are a list: the steps, the sums of `STEP_FIELDS` in order, and last the steps whose loss is known."""


def columns_for(world: int) -> int:
    """Return how many buckets of each width are kept of so many ranks."""
    each = 4 * (len(STEP_FIELDS) + 3) * len(WIDTHS_S) * max(1, world)
    return max(LEAST_COLUMNS, min(MOST_COLUMNS, MEMORY_BYTES // each))


class _Open:
    """The bucket of a rank that is still being filled."""

    __slots__ = ("bucket", "sums")

    def __init__(self, bucket: int, sums: Sequence[float]) -> None:
        self.bucket = bucket
        self.sums = sums


class _Level:
    """The newest buckets of one width, of every rank; closed ones go on to the next, wider level."""

    def __init__(self, world: int, columns: int, width_ns: int, divisors: Sequence[int], below: _Level | None) -> None:
        self.width_ns = width_ns
        self.columns = columns
        self._divisors = list(divisors)
        self._below = below
        self._above: _Level | None = None
        if below is not None:
            below._above = self
        self._cells: Array = np.full((world, columns, len(divisors)), np.nan, np.float32)
        self._numbers = np.zeros((world, columns), np.uint32)
        """Which bucket, counted from the epoch, a cell holds: those gone by without a step are not it."""
        self._open: list[_Open | None] = [None] * world
        self.touched: set[int] = set()
        """Ranks with something new that is not written yet."""
        self._closed: list[tuple[int, int, Sequence[float]]] = []
        """Rank, bucket and sums that are still to be written: together they cost a tenth."""

    def add(self, rank: int, begin_ns: int, end_ns: int, sums: Sequence[float]) -> None:
        bucket = end_ns // self.width_ns
        held = self._open[rank]
        if held is None or held.bucket < bucket:
            since = max(-(-begin_ns // self.width_ns), bucket - self.columns)
            if held is not None:
                self._close(rank, held.bucket, held.bucket + 1, held.sums)
                since = max(since, held.bucket + 1)
            if since < bucket:
                self._close(rank, since, bucket, sums)
            self._open[rank] = _Open(bucket, sums)
        else:
            # Also where a clock was set back: time in a ring goes one way.
            held.sums = list(map(add, held.sums, sums))

    def _close(self, rank: int, since: int, until: int, sums: Sequence[float]) -> None:
        self._closed += [(rank, bucket, sums) for bucket in range(since, until)]
        if len(self._closed) > _WRITTEN_AT_ONCE:
            self._write()
        if self._above is not None:
            self._above.add(rank, since * self.width_ns, until * self.width_ns - 1, sums)

    def add_closed(self, rank: int, ends_ns: npt.NDArray[np.int64], sums: npt.NDArray[np.float64]) -> None:
        buckets = ends_ns // self.width_ns
        first = np.flatnonzero(np.diff(buckets, prepend=buckets[0] - 1))
        self._put(np.full(len(first), rank), buckets[first], np.add.reduceat(sums, first))

    def _write(self) -> None:
        ranks, buckets = (np.array([each[index] for each in self._closed], np.int64) for index in (0, 1))
        sums = np.array([each[2] for each in self._closed], np.float64)
        self._closed.clear()
        self._put(ranks, buckets, sums)

    def _put(self, ranks: npt.NDArray[np.int64], buckets: npt.NDArray[np.int64], sums: npt.NDArray[np.float64]) -> None:
        # 0 / 0: nothing is known of it.
        with np.errstate(invalid="ignore", divide="ignore"):
            means = sums[:, 1 : len(self._divisors) + 1] / sums[:, self._divisors]
        # Where a cell is written twice the later one stays.
        self._cells[ranks, buckets % self.columns] = means
        self._numbers[ranks, buckets % self.columns] = buckets

    def window(self, field: int, last: int, count: int, rank: int | None) -> Array:
        # What is still being filled is to be seen too.
        for changed in self.touched:
            self._closed += [(changed, bucket, sums) for bucket, sums in self._filling(changed).items()]
        self.touched.clear()
        if self._closed:
            self._write()
        buckets = np.arange(last - count + 1, last + 1)
        chosen = slice(None) if rank is None else slice(rank, rank + 1)
        cells: Array = self._cells[chosen, :, field][:, buckets % self.columns]
        cells[self._numbers[chosen][:, buckets % self.columns] != buckets] = np.nan
        return cells

    def _filling(self, rank: int) -> dict[int, Sequence[float]]:
        """Return, by bucket, the sums of those that are not closed, here and in the narrower levels."""
        held = self._open[rank]
        found: dict[int, Sequence[float]] = {} if held is None else {held.bucket: held.sums}
        if self._below is not None:
            ratio = self.width_ns // self._below.width_ns
            for bucket, sums in self._below._filling(rank).items():
                mine = found.get(bucket // ratio)
                found[bucket // ratio] = sums if mine is None else list(map(add, mine, sums))
        return found


class Ring:
    """Means of some numbers of every rank, the newest buckets of each width."""

    def __init__(self, world: int, columns: int, divisors: Sequence[int]) -> None:
        self._levels: list[_Level] = []
        below = None
        for width in WIDTHS_S:
            below = _Level(world, columns, width * 1_000_000_000, divisors, below)
            self._levels.append(below)

    def add(self, rank: int, begin_ns: int, end_ns: int, sums: Sequence[float]) -> None:
        """Take in sums over what happened between two moments, as `_DIVISORS` says."""
        self._levels[0].add(rank, begin_ns, end_ns, sums)
        for level in self._levels:
            level.touched.add(rank)

    def add_closed(self, rank: int, ends_ns: npt.NDArray[np.int64], sums: npt.NDArray[np.float64]) -> None:
        """Take in sums over moments that are all before those of the rank that come by `add`; one row a moment."""
        for level in self._levels:
            level.add_closed(rank, ends_ns, sums)

    def window(self, level: int, field: int, last: int, count: int, rank: int | None = None) -> Array:
        """Return `count` buckets up to number `last`, one row a rank, NaN where nothing is known."""
        ring = self._levels[level]
        return ring.window(field, last, max(0, min(count, ring.columns)), rank)


class Tracks:
    """The numbers of every rank over time. Times go in as ns since the epoch and come out in buckets."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.columns = columns_for(world)
        self._steps = Ring(world, self.columns, _DIVISORS)
        self._memory = Ring(world, self.columns, (0,))

    def take(self, rank: int, step: Step) -> None:
        """Take in a step record."""
        end = step.end_at_ns
        if 0 < end < _LAST_NS:
            self._steps.add(rank, end - max(0, step.wall_ns), end, _sums(step))

    def take_samples(self, rank: int, steps: Sequence[Step]) -> None:
        """Take in records from before the first of the rank's others: together, at a tenth of the cost of each."""
        steps = [step for step in steps if 0 < step.end_at_ns < _LAST_NS]
        if steps:
            ends = np.array([step.end_at_ns for step in steps], np.int64)
            self._steps.add_closed(rank, ends, np.array([_sums(step) for step in steps], np.float64))

    def take_means(self, rank: int, end_at_ns: int, span_ns: int, steps: int, means: Sequence[float]) -> None:
        """Take in the means of `steps` steps that took `span_ns` in all.

        `means` is in the order of `STEP_FIELDS`, times in ns, NaN for what is not known.
        """
        if not 0 < end_at_ns < _LAST_NS or steps <= 0:
            return
        *others, loss = means
        known = loss == loss
        sums = (steps, *(mean * steps for mean in others), _bounded(loss) * steps if known else 0.0, steps * known)
        self._steps.add(rank, end_at_ns - max(0, span_ns), end_at_ns, sums)

    def take_memory(self, rank: int, at_ns: int, memory_bytes: int) -> None:
        """Take in a reading of the memory."""
        if 0 < at_ns < _LAST_NS:
            self._memory.add(rank, at_ns - _READING_NS, at_ns, (1, float(memory_bytes)))

    def bucket(self, level: int, at: float) -> int:
        """Return the number of the bucket that a moment (s since the epoch) is in."""
        return int(at // WIDTHS_S[level])

    def knows(self, level: int, bucket: int) -> bool:
        """Say whether any rank has completed a step in a bucket."""
        return bool(np.isfinite(self._steps.window(level, 0, bucket, 1)).any())

    def window(self, metric: str, level: int, last: int, count: int, rank: int | None = None) -> Array:
        """Return a metric over the `count` buckets up to number `last`.

        Args:
            metric: one of `metrics.METRICS`, or `number`, the mean step number.
            level: index into `metrics.WIDTHS_S`.
            last: number of the newest bucket.
            count: at most `columns`.
            rank: one rank only, instead of all.

        Returns:
            One row a rank and one column a bucket, oldest first; NaN where nothing is known,
            infinite where a loss was not finite. Milliseconds, bytes or the loss itself.
        """
        if metric == "memory":
            return self._memory.window(level, 0, last, count, rank)

        def of(name: str) -> Array:
            return self._steps.window(level, STEP_FIELDS.index(name), last, count, rank)

        def scaled(ns: Array) -> Array:
            ms: Array = ns * _MS
            return ms

        if metric in ("loss", "number"):
            return of(metric)
        if metric == "own":
            return scaled(of("step") - of("wait"))
        if metric == "other":
            known = of("data") + of("forward") + of("backward") + of("optimizer")
            return scaled(of("step") - known - np.nan_to_num(of("wait")))
        return scaled(of(metric))


def _sums(step: Step) -> tuple[float, ...]:
    wait, loss = step.wait_ns, step.loss
    return (
        1, step.step, step.wall_ns, step.data_ns, step.forward_ns, step.backward_ns, step.optimizer_ns,
        math.nan if wait is None else wait, 0.0 if loss is None else _bounded(loss), 0 if loss is None else 1,
    )  # fmt: skip


def _bounded(loss: float) -> float:
    # float32 holds no more; NaN and both infinities become one sign for "not finite".
    return loss if abs(loss) < 3e38 else math.inf
