"""Numbers over the steps of a run, in bounded memory: new steps whole, old ones in buckets of 2, 4, 8 and more.

Pure. A bucket keeps the least, the greatest and the mean of its steps, so that neither a
spike nor the course is lost; buckets are aligned by step number, so that those of different
ranks lie over each other. Imports NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_LARGEST = float(np.finfo(np.float32).max)


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
class _Buckets:
    steps: npt.NDArray[np.int64]
    at: Floats
    stats: npt.NDArray[np.float32]
    """(4, buckets, columns): least, greatest, mean, how many steps knew the number."""

    def part(self, where: slice) -> _Buckets:
        """Return some of the buckets; copied, because a view would keep all of them alive."""
        return _Buckets(self.steps[where].copy(), self.at[where].copy(), self.stats[:, where].copy())

    def then(self, later: _Buckets) -> _Buckets:
        return _Buckets(
            np.concatenate((self.steps, later.steps)),
            np.concatenate((self.at, later.at)),
            np.concatenate((self.stats, later.stats), axis=1),
        )

    def folded(self, bits: int) -> _Buckets:
        """Return one bucket for each two that share the step number without its last `bits`."""
        numbers = (self.steps - 1) >> bits
        first = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
        second = np.append(first[1:], len(numbers)) - 1
        alone = (first == second)[:, None]
        (low, high, mean, count), (other_low, other_high, other_mean, other_count) = (
            self.stats[:, first],
            self.stats[:, second],
        )
        stats = np.empty_like(self.stats[:, first])
        np.fmin(low, other_low, out=stats[0])
        np.fmax(high, other_high, out=stats[1])
        share = np.divide(other_count, count + other_count, out=np.zeros_like(count), where=other_count > 0)
        with np.errstate(invalid="ignore"):
            both = mean * (1 - share) + other_mean * share
        # A mean that is not known, because no step was, must not come in with a weight of zero.
        stats[2] = np.where(share == 0, mean, np.where(share == 1, other_mean, both))
        stats[2] = np.where(alone, mean, stats[2])
        stats[3] = np.where(alone, count, count + other_count)
        return _Buckets(self.steps[second], self.at[second], stats)


class Track:
    """A few numbers of one rank over all its steps.

    Holds at most `2 * capacity` buckets of 1 step, of 2 steps, of 4, and so on: for n steps
    about `1.5 * capacity * log2(n / capacity)` buckets of 16 bytes and 16 for each number.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._levels: list[_Buckets] = []
        """From single steps to the widest buckets; in time the last level comes first."""

    def extend(self, rows: Floats) -> None:
        """Append rows of step, moment and numbers; steps rise, also over calls. NaN: not known."""
        if not len(rows):
            return
        values = rows[:, 2:]
        known = ~np.isnan(values)
        # float32 holds no more; both infinities become one sign for "not finite".
        values = np.where(np.abs(values) > _LARGEST, np.inf, values)
        new = _Buckets(
            rows[:, 0].astype(np.int64), rows[:, 1].copy(), np.stack((values, values, values, known)).astype(np.float32)
        )
        level = 0
        while True:
            if level == len(self._levels):
                self._levels.append(new)
            else:
                self._levels[level] = self._levels[level].then(new)
            kept = self._levels[level]
            if len(kept.steps) < 2 * self._capacity:
                return
            cut = len(kept.steps) - self._capacity
            # Both halves of a bucket go on together.
            cut -= (kept.steps[cut] - 1) >> (level + 1) == (kept.steps[cut - 1] - 1) >> (level + 1)
            self._levels[level] = kept.part(slice(cut, None))
            new = kept.part(slice(cut)).folded(level + 1)
            level += 1

    def read(self, column: int, first: float, last: float) -> Series:
        """Return one number between two steps, the buckets at both edges included."""
        parts = []
        for level in reversed(self._levels):
            begin = int(np.searchsorted(level.steps, first))
            end = int(np.searchsorted(level.steps, last)) + 1
            if begin < len(level.steps):
                low, high, mean, count = level.stats[:, begin:end, column].astype(np.float64)
                steps = level.steps[begin:end].astype(np.float64)
                parts.append(Series(steps, level.at[begin:end], mean, low, high, count))
            if end <= len(level.steps):
                break
        return joined(parts)

    @property
    def nbytes(self) -> int:
        """Memory of all buckets."""
        return sum(level.steps.nbytes + level.at.nbytes + level.stats.nbytes for level in self._levels)


def joined(parts: list[Series]) -> Series:
    """Return series one after the other."""
    if not parts:
        return Series(*(np.empty(0) for _ in range(6)))
    return Series(*(np.concatenate(column) for column in zip(*(part.columns for part in parts), strict=True)))
