"""Numbers over the steps or seconds of a run, in buckets that can be folded into wider ones. Pure.

A bucket has the mean, the least and the greatest of its steps, so that neither a spike nor the course is lost. Buckets
are aligned by number, so that those of different ranks lie over each other. Imports NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Cells = npt.NDArray[np.float32]


def doubles(cells: Cells) -> Floats:
    """Return cells as numbers of 64 bits; those of a damaged file may be a NaN of any kind."""
    with np.errstate(invalid="ignore"):
        return cells.astype(np.float64)


@dataclass(frozen=True, slots=True)
class Series:
    """One number over steps; one row a bucket. NaN: not known, infinite: not finite."""

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


def joined(parts: Sequence[Series]) -> Series:
    """Return series one after the other."""
    if not parts:
        return Series(*(np.empty(0) for _ in range(6)))
    if len(parts) == 1:
        return parts[0]
    return Series(*(np.concatenate(column) for column in zip(*(part.columns for part in parts), strict=True)))


@dataclass(frozen=True, slots=True)
class Buckets:
    """Buckets of some ranks, in any order; a bucket may be in two parts, which count together."""

    numbers: tuple[str, ...]
    ranks: Whole
    keys: Whole
    """The last step of the bucket, or the end of its last second, in seconds since the epoch."""
    at: Floats
    """When the last step of the bucket ended, in seconds since the epoch."""
    weight: Cells
    """Steps of the bucket."""
    cells: Cells
    """(numbers, 4, buckets): mean, least, greatest, and steps that knew the number; NaN, and 0, where none did."""

    def part(self, where: npt.NDArray[np.bool_] | Whole) -> Buckets:
        """Return some of the buckets."""
        return Buckets(
            self.numbers, self.ranks[where], self.keys[where], self.at[where], self.weight[where],
            self.cells[:, :, where],
        )  # fmt: skip

    def cut(self, most: int) -> Sequence[Buckets]:
        """Return the buckets in parts of at most so many, one after the other."""
        if len(self.ranks) <= most:
            return (self,)
        order = np.argsort(self.keys, kind="stable")
        return [self.part(order[first : first + most]) for first in range(0, len(order), most)]

    def folded(self, bits: int) -> Buckets:
        """Return one bucket for all of a rank that share the number of the step, or of the second, without its last
        `bits`.
        """
        if not len(self.ranks):
            return self
        wide = (self.keys - 1) >> bits
        order = np.lexsort((wide, self.ranks))
        ranks, wide = self.ranks[order], wide[order]
        first = np.flatnonzero(np.append(True, (np.diff(ranks) != 0) | (np.diff(wide) != 0)))
        mean, low, high, count = doubles(self.cells[:, :, order]).swapaxes(0, 1)
        known = np.add.reduceat(count, first, axis=1)
        # 0 / 0: nothing is known of it.
        with np.errstate(invalid="ignore", over="ignore"):
            sums = np.add.reduceat(np.where(count > 0, mean * count, 0.0), first, axis=1) / known
            stats = sums, np.fmin.reduceat(low, first, axis=1), np.fmax.reduceat(high, first, axis=1), known
            cells = np.stack(stats, axis=1).astype(np.float32)
        return Buckets(
            self.numbers, ranks[first], np.maximum.reduceat(self.keys[order], first),
            np.fmax.reduceat(self.at[order], first), np.add.reduceat(self.weight[order], first), cells,
        )  # fmt: skip


def together(parts: Sequence[Buckets]) -> Buckets:
    """Return buckets of several parts in one; numbers that a part does not have are not known there."""
    numbers = tuple(dict.fromkeys(number for part in parts for number in part.numbers))
    ranks, keys, at, weight = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("ranks", "keys", "at", "weight")
    )
    cells = np.full((len(numbers), 4, len(ranks)), np.nan, np.float32)
    cells[:, 3] = 0
    begin = 0
    for part in parts:
        end = begin + len(part.ranks)
        cells[[numbers.index(number) for number in part.numbers], :, begin:end] = part.cells
        begin = end
    return Buckets(numbers, ranks, keys, at, weight, cells)
