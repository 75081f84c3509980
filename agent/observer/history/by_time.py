"""Every rank's numbers over time, in buckets: what the heatmap and the histories draw.

Pure: a bounded ring for each rank at a few bucket widths, which changes under whoever draws from
it; written through `HistoryByTime` only.  Step records and ready-made means fill it alike.  A bucket holds
the mean of the steps that ended in it; a step longer than a bucket fills those it lasted for.
Imports NumPy, so it is loaded only where something is to be drawn from it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ddptop.agent.observer.history.numbers import WIDTHS_S
from ddptop.agent.wire import Step, Summary

Array = npt.NDArray[np.float32]
Sums = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

_READING_NS: Final = 2_000_000_000
"""A reading of the memory, taken once a second, stands for the time before it."""
_WAITING: Final = 512
"""Records that wait at most."""
_ROUNDS: Final = 4
"""Or so many of each rank, where that is more."""
_LAST_NS: Final = 4_000_000_000 * 10**9
"""Moments beyond this, in the year 2096, are no honest clock's; buckets before it fit `_BUCKET_BITS`."""
_BUCKET_BITS: Final = 32
_BUCKETS: Final = (1 << _BUCKET_BITS) - 1
_NONE: Final = -1
"""Stands for a bucket where there is none yet."""
_MS: Final = np.float32(1e-6)

MEMORY_BYTES: Final = 64 << 20
"""What all rings of a run may take."""
MOST_COLUMNS: Final = 512
LEAST_COLUMNS: Final = 64
"""Also where many ranks then take more than `MEMORY_BYTES`: 4 bytes x 11 numbers x 4 widths x 64 = 11 KiB a rank."""
BLOCK: Final = 64
"""Columns that are saved together."""

STEP_FIELDS: Final = ("number", "step", "data", "forward", "backward", "optimizer", "wait", "loss")
"""The numbers held of steps; each is a mean of its own sum and of the count that `_DIVISORS` names."""
_DIVISORS: Final = (0, 0, 0, 0, 0, 0, 0, 9)
"""Sums are a list: the steps, the sums of `STEP_FIELDS` in order, and last the steps whose loss is known."""


def columns_for(world: int) -> int:
    """Return how many buckets of each width are held of so many ranks."""
    each = 4 * (len(STEP_FIELDS) + 3) * len(WIDTHS_S) * max(1, world)
    return max(LEAST_COLUMNS, min(MOST_COLUMNS, MEMORY_BYTES // each))


class Level:
    """The newest buckets of one width, of every rank; closed ones go on to the next, wider level."""

    def __init__(self, world: int, columns: int, width_s: int, divisors: Sequence[int], below: Level | None) -> None:
        self.width_s = width_s
        self.columns = columns
        self._divisors = list(divisors)
        self._below = below
        self._above: Level | None = None
        if below is not None:
            below._above = self
        # One number of all ranks lies together, because that is what a heatmap looks at.
        self._cells: Array = np.full((len(divisors), world, columns), np.nan, np.float32)
        self._numbers = np.zeros((world, columns), np.uint32)
        """Which bucket, counted from the epoch, a cell holds: those gone by without a step are not it."""
        self._open: Numbers = np.full(world, _NONE, np.int64)
        """By rank, the bucket that is still being filled."""
        self._sums: Sums = np.zeros((world, 1 + max(len(divisors), *divisors)))
        """What is in it so far."""
        self._changed = np.zeros(-(-columns // BLOCK), np.bool_)
        """Blocks that were written to since `take_changed`."""

    def take_changed(self, *, whole: bool) -> dict[int, tuple[Array, npt.NDArray[np.uint32]]]:
        """Return copies of cells and their buckets, by the number of the block: those that changed, or the `whole`."""
        chosen = range(len(self._changed)) if whole else np.flatnonzero(self._changed).tolist()
        self._changed[:] = False
        found = {}
        for block in chosen:
            part = slice(block * BLOCK, (block + 1) * BLOCK)
            found[block] = self._cells[:, :, part].copy(), self._numbers[:, part].copy()
        return found

    def shape_of(self, block: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of a block's cells and of its buckets."""
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        return self._cells[:, :, part].shape, self._numbers[:, part].shape

    def put(self, block: int, cells: Array, numbers: npt.NDArray[np.uint32]) -> None:
        """Put in a block as `take_changed` gave it."""
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        self._cells[:, :, part], self._numbers[:, part] = cells, numbers

    @property
    def open(self) -> tuple[Numbers, Sums]:
        """By rank, the bucket that is still being filled, and the sums that are in it."""
        return self._open, self._sums

    @open.setter
    def open(self, now: tuple[Numbers, Sums]) -> None:
        self._open, self._sums = now

    def add(self, rows: _Rows) -> None:
        """Take in rows, at most one of a rank; a bucket of before it joins the one that is open."""
        held = self._open[rows.ranks]
        newer = rows.buckets > held
        same = ~newer
        self._sums[rows.ranks[same]] += rows.sums[same]
        if not newer.any():
            return
        rows, held = rows.part(newer), held[newer]
        begun = held != _NONE
        whose = rows.ranks[begun]
        self._close(whose, held[begun], held[begun] + 1, self._sums[whose])
        since = np.maximum(np.maximum(rows.since, rows.buckets - self.columns), held + 1)
        long = since < rows.buckets
        self._close(rows.ranks[long], since[long], rows.buckets[long], rows.first[long])
        self._open[rows.ranks], self._sums[rows.ranks] = rows.buckets, rows.sums

    def _close(self, ranks: Numbers, since: Numbers, until: Numbers, sums: Sums) -> None:
        """Write the same into the buckets from `since` up to `until`, and hand it on."""
        if not len(ranks):
            return
        self._write(ranks, since, until, sums)
        if self._above is not None:
            ratio = self._above.width_s // self.width_s
            self._above.add(_Rows(ranks, -(-since // ratio), (until - 1) // ratio, sums, sums))

    def _write(self, ranks: Numbers, since: Numbers, until: Numbers, sums: Sums) -> None:
        # 0 / 0: nothing is known of it.
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            means = (sums[:, 1 : len(self._divisors) + 1] / sums[:, self._divisors]).astype(np.float32)
        counts = until - since
        row = np.repeat(np.arange(len(ranks)), counts)
        buckets = since[row] + np.arange(len(row)) - (np.cumsum(counts) - counts)[row]
        self._cells[:, ranks[row], buckets % self.columns] = means[row].T
        self._numbers[ranks[row], buckets % self.columns] = buckets
        self._changed[buckets % self.columns // BLOCK] = True

    def show_open(self) -> None:
        """Write what is still being filled, here and in the narrower levels: it is to be seen too."""
        buckets, sums, level = self._open, self._sums, self._below
        while level is not None:
            narrower = np.where(level._open == _NONE, _NONE, level._open // (self.width_s // level.width_s))
            same = narrower == buckets
            self._write_known(buckets, sums, ~same)
            sums = np.where(same[:, None], sums + level._sums, level._sums)
            buckets, level = narrower, level._below
        self._write_known(buckets, sums, np.ones(len(buckets), np.bool_))

    def _write_known(self, buckets: Numbers, sums: Sums, where: npt.NDArray[np.bool_]) -> None:
        ranks = np.flatnonzero(where & (buckets != _NONE))
        self._write(ranks, buckets[ranks], buckets[ranks] + 1, sums[ranks])

    def window(self, field: int, last: int, count: int, rank: int | None) -> Array:
        chosen = slice(None) if rank is None else slice(rank, rank + 1)
        begin, after = (last - count + 1) % self.columns, (last + 1) % self.columns
        # Slices, where the ring ends and begins again two of them: to gather cells takes ten times as long.
        parts = [slice(begin, after)] if begin < after or not count else [slice(begin, None), slice(0, after)]
        cells: Array = np.concatenate([self._cells[field, chosen, part] for part in parts], axis=1)
        numbers = np.concatenate([self._numbers[chosen, part] for part in parts], axis=1)
        cells[numbers != np.arange(last - count + 1, last + 1).astype(np.uint32)] = np.nan
        return cells


class _Rows(NamedTuple):
    """What happened to some ranks, a row each."""

    ranks: Numbers
    since: Numbers
    """The first bucket that lies in it as a whole."""
    buckets: Numbers
    """The bucket that it ended in."""
    sums: Sums
    first: Sums
    """The value given to the buckets between those two: the sums of the first record, where several were added up."""

    def part(self, where: npt.NDArray[Any]) -> _Rows:
        return _Rows(*(each[where] for each in self))


class Ring:
    """Means of some numbers of every rank, the newest buckets of each width.

    Records wait until there are many, or somebody looks: together they take a tenth of the time.
    """

    def __init__(self, world: int, columns: int, divisors: Sequence[int]) -> None:
        self._levels: list[Level] = []
        below = None
        for width in WIDTHS_S:
            below = Level(world, columns, width, divisors, below)
            self._levels.append(below)
        self._waiting = array("d")
        """Rank, first and last bucket of the narrowest level, sums; one record after the other."""
        self._width = 3 + self._levels[0]._sums.shape[1]
        self._most = max(_WAITING, _ROUNDS * world) * self._width
        self._hidden: set[int] = set()
        """Levels that do not show all yet."""

    def add(self, rank: int, begin_ns: int, end_ns: int, sums: Sequence[float]) -> None:
        """Take in sums over what happened between two moments, as `_DIVISORS` says."""
        width = WIDTHS_S[0] * 1_000_000_000
        self._waiting.extend((rank, -(-begin_ns // width), end_ns // width, *sums))
        if len(self._waiting) >= self._most:
            self._take_in()

    def _take_in(self) -> None:
        if not self._waiting:
            return
        table = np.frombuffer(self._waiting).reshape(-1, self._width)
        table = table[np.argsort(table[:, 0], kind="stable")]
        self._waiting = array("d")
        ranks, since, buckets = table[:, :3].T.astype(np.int64)
        # Where a clock was set back, time goes on in the bucket it was in: it goes one way.
        keys = np.maximum.accumulate(ranks << _BUCKET_BITS | buckets)
        firsts = np.flatnonzero(np.diff(keys, prepend=-1))
        sums = np.add.reduceat(table[:, 3:], firsts, axis=0)
        rows = _Rows(ranks[firsts], since[firsts], keys[firsts] & _BUCKETS, sums, table[firsts, 3:])
        # The first bucket of every rank, then the second of those that have one, and so on.
        begins = np.flatnonzero(np.diff(rows.ranks, prepend=-1))
        turns = np.arange(len(firsts)) - np.repeat(begins, np.diff(begins, append=len(firsts)))
        for turn in range(int(turns.max()) + 1):
            self._levels[0].add(rows.part(turns == turn))
        self._hidden.update(range(len(self._levels)))

    @property
    def levels(self) -> Sequence[Level]:
        """The rings, from the narrowest buckets on, with all that has come."""
        self._take_in()
        return self._levels

    def show_open(self) -> None:
        """Let the next `window` of each level show what is still being filled."""
        self._hidden.update(range(len(self._levels)))

    def window(self, level: int, field: int, last: int, count: int, rank: int | None = None) -> Array:
        """Return `count` buckets up to number `last`, one row a rank, NaN where nothing is known."""
        self._take_in()
        ring = self._levels[level]
        if level in self._hidden:
            self._hidden.discard(level)
            ring.show_open()
        return ring.window(field, last, max(0, min(count, ring.columns)), rank)


class HistoryByTime:
    """The numbers of every rank over time. Times go in as ns since the epoch and come out in buckets."""

    def __init__(self, world: int) -> None:
        self.columns = columns_for(world)
        self._steps = Ring(world, self.columns, _DIVISORS)
        self._memory = Ring(world, self.columns, (0,))

    def take(self, rank: int, step: Step) -> None:
        """Take in a step record."""
        end = step.end_at_ns
        if 0 < end < _LAST_NS:
            self._steps.add(rank, end - max(0, step.wall_ns + step.counted_ns), end, _sums(step))

    def take_summary(self, told: Summary) -> None:
        """Take in a summary of a rank's newest steps."""
        end, steps, wall, loss = told.end_at_ns, told.steps, told.wall_ns, told.loss
        if not 0 < end < _LAST_NS or steps <= 0:
            return
        known = loss is not None and loss == loss
        sums = (
            steps, told.step * steps, wall * steps, *(span * steps for span in _spans(told)),
            _bounded(loss) * steps if known and loss is not None else 0.0, steps if known else 0,
        )  # fmt: skip
        self._steps.add(told.rank, end - max(0, wall * steps), end, sums)

    def take_memory(self, rank: int, at_ns: int, memory_bytes: int) -> None:
        """Take in a reading of the memory."""
        if 0 < at_ns < _LAST_NS:
            self._memory.add(rank, at_ns - _READING_NS, at_ns, (1, float(memory_bytes)))

    @property
    def rings(self) -> tuple[Ring, Ring]:
        """The numbers of steps, and the memory."""
        return self._steps, self._memory

    def window(self, metric: str, level: int, last: int, count: int, rank: int | None = None) -> Array:
        """Return a metric over the `count` buckets up to number `last`.

        Args:
            metric: one of the numbers of `STEP_FIELDS`, `own`, `other` or `memory`, or `number`, the mean step number.
            level: index into `numbers.WIDTHS_S`.
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
            phases = ("data", "forward", "backward", "optimizer", "wait")
            return scaled(of("step") - sum(np.nan_to_num(of(phase)) for phase in phases))
        return scaled(of(metric))


def _sums(step: Step) -> tuple[float, ...]:
    loss = step.loss
    return (
        1, step.step, step.wall_ns, *_spans(step), 0.0 if loss is None else _bounded(loss), 0 if loss is None else 1,
    )  # fmt: skip


def _spans(told: Step | Summary) -> list[float]:
    """Return the phases of `STEP_FIELDS`; NaN where one is not known."""
    spans = told.data_ns, told.forward_ns, told.backward_ns, told.optimizer_ns, told.wait_ns
    return [math.nan if span is None else span for span in spans]


def _bounded(loss: float) -> float:
    # float32 holds no more; NaN and both infinities become one sign for "not finite".
    return loss if abs(loss) < 3e38 else math.inf
