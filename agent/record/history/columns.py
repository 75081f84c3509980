"""The history as columns of a plot: buckets folded to as many as can be drawn, and their way over the wire. Pure.

Each column stands for the same steps on all ranks; its width is a power of two, so that columns stay as they are when
steps come. Folding keeps least, greatest, mean and number: a column says of its steps what the steps themselves say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ddptop.agent import wire
from ddptop.agent.record.history.series import Floats, Series

_ROOM: Final = wire.MAX_MESSAGE_BYTES - 4096
"""Bytes of the tables of one part, beside its names and numbers."""
_FLOAT: Final = np.dtype("<f4")
_RANK: Final = np.dtype("<u4")
_LAST_S: Final = 4e9
"""Moments beyond this, in the year 2096, are no honest clock's."""


class Columns(NamedTuple):
    """Some ranks' values over the same stretches of steps; NaN where a rank has none."""

    steps: Floats
    """The last step of each column."""
    at: Floats
    """(ranks, columns): when it ended there, seconds since the epoch."""
    mean: Floats
    """(ranks, columns), as the three below."""
    low: Floats
    high: Floats
    known: Floats
    """Steps whose number is known."""


def stride_of(first: int, last: int, width: int) -> int:
    """Return how many steps share a column: a power of two, so that columns stay as they are when steps come."""
    return 1 << max(0, math.ceil(math.log2((last - first + 1) / max(1, width))))


def fold(
    ranks: Sequence[int], whose: npt.NDArray[np.int64], series: Series, first: int, last: int, stride: int
) -> Columns:
    """Return values with `stride` steps to a column, from step `first` to step `last`.

    Args:
        ranks: the rows to make.
        whose: by bucket of `series`, the rank that it is of.
        series: of these ranks, and maybe of others.
        first: the first step.
        last: the last step.
        stride: steps to a column.
    """
    begin = (first - 1) // stride
    count = (last - 1) // stride - begin + 1
    row_of = np.full(1 + max(*ranks, int(whose.max(initial=0)), 0), -1)
    row_of[list(ranks)] = np.arange(len(ranks))
    row = row_of[whose]
    # All ranks at once: a thousand, one by one, would hold up a key.
    inside = (row >= 0) & (series.steps >= first) & (series.steps <= last)
    together = series.part(inside)
    cell = row[inside] * count + (together.steps.astype(np.int64) - 1) // stride - begin
    low, high, at = (np.full(len(ranks) * count, np.nan) for _ in range(3))
    np.fmin.at(low, cell, together.low)
    np.fmax.at(high, cell, together.high)
    np.fmax.at(at, cell, together.at)
    weighed = np.where(together.count > 0, together.mean, 0.0) * together.count
    sums, known = (np.bincount(cell, of, len(low)) for of in (weighed, together.count))
    mean = np.where(known > 0, sums / np.maximum(known, 1), np.nan)
    steps = np.minimum((np.arange(count) + begin + 1) * stride, last).astype(np.float64)
    shape = len(ranks), count
    return Columns(
        steps, at.reshape(shape), mean.reshape(shape), low.reshape(shape), high.reshape(shape),
        known.astype(np.float64).reshape(shape),
    )  # fmt: skip


class Table(NamedTuple):
    """A part of a history as it came over the wire: rows of ranks, consecutive columns."""

    ranks: npt.NDArray[np.int64]
    mean: Floats
    low: Floats
    high: Floats
    known: Floats
    at: Floats


def parts_of_steps(
    query: wire.History, ranks: Sequence[int], columns: Columns, begin: int, stride: int
) -> Iterator[wire.HistoryPart]:
    """Yield columns over steps as messages, each below the bound on messages."""
    known = columns.at[np.isfinite(columns.at)]
    at_s = max(0.0, float(known.min())) if len(known) else 0.0
    tables = (columns.mean, columns.low, columns.high, columns.known, columns.at - at_s)
    for rows, across, (mean, low, high, count, at) in _cut(tables):
        yield wire.HistoryPart(
            query.id, query.metric, query.by, stride, begin + across.start, mean.shape[1], _packed_ranks(ranks[rows]),
            _packed(mean), _packed(low), _packed(high), _packed(count), _packed(at), at_s,
        )  # fmt: skip


def parts_of_time(
    query: wire.History, ranks: Sequence[int], values: Floats, begin: int, width: int
) -> Iterator[wire.HistoryPart]:
    """Yield columns over time as messages, each below the bound on messages."""
    for rows, across, (mean,) in _cut((values,)):
        yield wire.HistoryPart(
            query.id, query.metric, query.by, width, begin + across.start, mean.shape[1],
            _packed_ranks(ranks[rows]), _packed(mean),
        )  # fmt: skip


def _cut(tables: Sequence[npt.NDArray[np.floating]]) -> Iterator[tuple[slice, slice, list[npt.NDArray[np.floating]]]]:
    """Yield rows and columns of equal tables that fit into one message."""
    height, width = tables[0].shape
    across = max(1, min(width, wire.MOST_COLUMNS, _ROOM // (4 * len(tables) + 4)))
    down = max(1, _ROOM // (4 * len(tables) * across + 4))
    for top in range(0, height, down):
        for left in range(0, width, across):
            rows, columns = slice(top, top + down), slice(left, left + across)
            yield rows, columns, [table[rows, columns] for table in tables]


def _packed(table: npt.NDArray[np.floating]) -> bytes:
    with np.errstate(over="ignore"):
        return table.astype(_FLOAT).tobytes()


def _packed_ranks(ranks: Sequence[int]) -> bytes:
    return np.array(ranks, _RANK).tobytes()


def table_of(part: wire.HistoryPart) -> Table:
    """Return the tables of a part, whatever its sender has put into them: numbers that can be drawn."""
    shape = len(part.ranks) // _RANK.itemsize, part.columns

    def read(table: bytes) -> Floats:
        if not table:
            return np.full(shape, np.nan)
        with np.errstate(invalid="ignore"):
            return np.frombuffer(table, _FLOAT).reshape(shape).astype(np.float64)

    def value(table: bytes) -> Floats:
        values = read(table)
        # One sign for "not finite".
        values[values == -np.inf] = np.inf
        return values

    count, at = read(part.count), read(part.at) + part.at_s
    count[~(count >= 0) | np.isinf(count)] = 0.0
    at[~((at >= 0) & (at < _LAST_S))] = np.nan
    ranks = np.frombuffer(part.ranks, _RANK).astype(np.int64)
    return Table(ranks, value(part.mean), value(part.low), value(part.high), count, at)
