"""Numbers over the steps of a run, in bounded memory: new steps whole, old ones in buckets of 2, 4, 8 and more.

Pure. A bucket keeps the least, the greatest and the mean of its steps, so that neither a
spike nor the course is lost; buckets are aligned by step number, so that those of different
ranks lie over each other. Imports NumPy.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_LARGEST = float(np.finfo(np.float32).max)
_serials: Final = itertools.count()


@dataclass(frozen=True, slots=True)
class Series:
    """One number over steps; one row a bucket, oldest first. NaN: not known, infinite: not finite."""

    steps: Floats
    """The last step of the bucket."""
    at: Floats
    """When that step ended, seconds since the epoch."""
    mean: Floats
    low: Floats
    high: Floats
    count: Floats
    """Steps of the bucket that knew the number."""

    @property
    def columns(self) -> tuple[Floats, ...]:
        """All of it, in the order above."""
        return self.steps, self.at, self.mean, self.low, self.high, self.count

    def part(self, where: slice | npt.NDArray[np.bool_]) -> Series:
        """Return some of the rows."""
        return Series(*(column[where] for column in self.columns))


@dataclass(frozen=True, slots=True)
class Buckets:
    """Buckets of some ranks, those of one rank in order."""

    ranks: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]
    at: Floats
    stats: npt.NDArray[np.float32]
    """(buckets, 4, columns): least, greatest, mean, how many steps knew the number."""
    serial: int = field(default_factory=lambda: next(_serials))
    """Of these very buckets in this process, so that a change is noticed."""

    def part(self, where: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Buckets:
        """Return some of the buckets; copied, because a view would keep all of them alive."""
        return Buckets(self.ranks[where], self.steps[where], self.at[where], self.stats[where])

    def then(self, later: Buckets) -> Buckets:
        return Buckets(
            np.concatenate((self.ranks, later.ranks)),
            np.concatenate((self.steps, later.steps)),
            np.concatenate((self.at, later.at)),
            np.concatenate((self.stats, later.stats)),
        )

    def divided(self, capacity: int, bits: int) -> tuple[Buckets, Buckets] | None:
        """Return the older buckets and the newer ones, rank by rank, where some rank has twice the capacity."""
        counts = np.bincount(self.ranks)
        over = np.flatnonzero(counts >= 2 * capacity)
        if not len(over):
            return None
        sorted_ = self.part(np.argsort(self.ranks, kind="stable"))
        begins = np.cumsum(counts) - counts
        leaving = np.zeros_like(counts)
        leaving[over] = counts[over] - capacity
        # Both halves of a bucket go on together.
        first_left = begins[over] + leaving[over]
        numbers = (sorted_.steps - 1) >> bits
        leaving[over] -= numbers[first_left] == numbers[first_left - 1]
        older = np.arange(len(sorted_.ranks)) - begins[sorted_.ranks] < leaving[sorted_.ranks]
        return (sorted_.part(older), sorted_.part(~older)) if older.any() else None

    def folded(self, bits: int) -> Buckets:
        """Return one bucket for each two of a rank that share the step number without its last `bits`.

        Those of a rank stand together.
        """
        numbers = (self.steps - 1) >> bits
        first = np.flatnonzero(np.append(True, (np.diff(numbers) != 0) | (np.diff(self.ranks) != 0)))
        second = np.append(first[1:], len(numbers)) - 1
        alone = (first == second)[:, None]
        low, high, mean, count = self.stats[first].swapaxes(0, 1)
        other_low, other_high, other_mean, other_count = self.stats[second].swapaxes(0, 1)
        stats = np.empty_like(self.stats[first])
        np.fmin(low, other_low, out=stats[:, 0])
        np.fmax(high, other_high, out=stats[:, 1])
        share = np.divide(other_count, count + other_count, out=np.zeros_like(count), where=other_count > 0)
        with np.errstate(invalid="ignore"):
            both = mean * (1 - share) + other_mean * share
        # A mean that is not known, because no step was, must not come in with a weight of zero.
        both = np.where(share == 0, mean, np.where(share == 1, other_mean, both))
        stats[:, 2] = np.where(alone, mean, both)
        stats[:, 3] = np.where(alone, count, count + other_count)
        return Buckets(self.ranks[first], self.steps[second], self.at[second], stats)

    def series(self, where: npt.NDArray[np.bool_] | npt.NDArray[np.int64], column: int) -> Series:
        """Return one number of some of the buckets."""
        low, high, mean, count = self.stats[where, :, column].T.astype(np.float64)
        return Series(self.steps[where].astype(np.float64), self.at[where], mean, low, high, count)


class Course:
    """A few numbers of each of some ranks over all its steps.

    Holds of each rank at most `2 * capacity` buckets of 1 step, of 2 steps, of 4, and so on: for n steps about
    `1.5 * capacity * log2(n / capacity)` buckets of 24 bytes and 16 for each number. The ranks share arrays:
    what is done to a thousand of them takes little longer than what is done to one.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._levels: list[Buckets] = []
        """From single steps to the widest buckets; in time the last level comes first."""

    @classmethod
    def restored(cls, capacity: int, levels: Sequence[Buckets]) -> Course:
        """Return a course with these levels, as `levels` gave them."""
        course = cls(capacity)
        course._levels = list(levels)
        return course

    @property
    def levels(self) -> Sequence[Buckets]:
        """All buckets, from single steps to the widest; they do not change, later ones take their place."""
        return tuple(self._levels)

    def extend(self, rows: Floats) -> None:
        """Append rows of rank, step, moment and numbers; a rank's steps rise, also over calls. NaN: not known."""
        if not len(rows):
            return
        values = rows[:, 3:]
        stats = np.empty((len(rows), 4, values.shape[1]), np.float32)
        # float32 holds no more; both infinities become one sign for "not finite".
        stats[:, :3] = np.where(np.abs(values) > _LARGEST, np.inf, values)[:, None]
        stats[:, 3] = ~np.isnan(values)
        ranks, steps = rows[:, :2].T.astype(np.int64)
        new = Buckets(ranks, steps, rows[:, 2].copy(), stats)
        for level in itertools.count():
            if level == len(self._levels):
                self._levels.append(new)
            else:
                self._levels[level] = self._levels[level].then(new)
            divided = self._levels[level].divided(self._capacity, level + 1)
            if divided is None:
                return
            older, self._levels[level] = divided
            new = older.folded(level + 1)

    def read(self, rank: int, column: int, first: float, last: float) -> Series:
        """Return one number of a rank between two steps, the buckets at both edges included."""
        parts = []
        for level in reversed(self._levels):
            mine = np.flatnonzero(level.ranks == rank)
            steps = level.steps[mine]
            begin, end = int(steps.searchsorted(first)), int(steps.searchsorted(last)) + 1
            if begin < len(mine):
                parts.append(level.series(mine[begin:end], column))
            if end <= len(mine):
                break
        return joined(parts)

    def read_all(self, column: int, first: float, last: float) -> tuple[npt.NDArray[np.int64], Series]:
        """Return one number of all ranks, of the buckets that end between two steps, and whose they are."""
        ranks, parts = [], []
        for level in self._levels:
            where = (level.steps >= first) & (level.steps <= last)
            ranks.append(level.ranks[where])
            parts.append(level.series(where, column))
        return np.concatenate(ranks or [np.empty(0, np.int64)]), joined(parts)

    def forget(self, ranks: Collection[int]) -> None:
        """Forget some of the ranks."""
        self._levels = [level.part(~np.isin(level.ranks, list(ranks))) for level in self._levels]

    @property
    def nbytes(self) -> int:
        """Memory of all buckets."""
        return sum(
            level.ranks.nbytes + level.steps.nbytes + level.at.nbytes + level.stats.nbytes for level in self._levels
        )


def joined(parts: Sequence[Series]) -> Series:
    """Return series one after the other."""
    if not parts:
        return Series(*(np.empty(0) for _ in range(6)))
    if len(parts) == 1:
        return parts[0]
    return Series(*(np.concatenate(column) for column in zip(*(part.columns for part in parts), strict=True)))
