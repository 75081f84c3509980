"""The answer to a question about the history, from the observer's memory or from the file of an ended run. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from ddptop.agent import wire
from ddptop.agent.observer.history.by_time import Array
from ddptop.agent.observer.history.columns import Columns, fold, parts_of_steps, parts_of_time, stride_of
from ddptop.agent.observer.history.numbers import OVER_TIME, WIDTHS_S
from ddptop.agent.observer.history.series import Series

MOST_CELLS: Final = 1 << 19
"""Columns of all ranks together in one answer: 512 columns of 1,024 ranks, 10 MB."""
_LEAST_COLUMNS: Final = 16
_LAST_S: Final = 4_000_000_000
"""The year 2096."""


class Source(Protocol):
    """A history as far as an answer needs it; `Kept` is one. For the meaning of each see there."""

    world: int

    @property
    def complete(self) -> bool:
        """False while there are recorded steps that have not been taken in."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """Values given by the script."""
        ...

    @property
    def refused(self) -> int:
        """Values left out because there were too many names."""
        ...

    @property
    def last(self) -> int:
        """The last step of any rank."""
        ...

    @property
    def columns(self) -> int:
        """Buckets of each width held over time."""
        ...

    def span(self, ranks: Sequence[int]) -> tuple[int, int] | None:
        """Return the first and the last step held of some ranks."""
        ...

    def has(self, metric: str) -> bool:
        """Say whether there is a number of this name over the steps."""
        ...

    def read_many(
        self, ranks: Sequence[int], metric: str, first: float, last: float
    ) -> tuple[npt.NDArray[np.int64], Series]:
        """Return whose each bucket is, and a metric of these ranks, maybe of others too."""
        ...

    def window(self, metric: str, level: int, last: int, count: int, rank: int | None = None) -> Array:
        """Return a number over time."""
        ...


def answer(source: Source, query: wire.History) -> Iterator[wire.HistoryAnswer]:
    """Yield the answer to a question: an `Extent`, parts below the bound on messages, and a `Reply`."""
    world = range(source.world)
    ranks = list(world) if query.ranks is None else sorted({rank for rank in query.ranks if rank in world})
    span = source.span(ranks or world)
    first, last = (0, 0) if span is None else span
    names = tuple(source.names)
    yield wire.Extent(query.id, first, last, source.last, source.complete, names, source.refused)
    problem = None
    if not query.metric or not ranks:
        pass
    elif query.by == "step":
        if not source.has(query.metric):
            problem = f"no number over the steps is called {query.metric}"
        elif span is not None:
            yield from _over_steps(source, query, ranks, *span)
    elif query.by == "time":
        if query.metric not in OVER_TIME:
            problem = f"no number over time is called {query.metric}"
        else:
            yield from _over_time(source, query, ranks)
    else:
        problem = "a history is by step or by time"
    yield wire.Reply(query.id, problem is None, problem or "")


def _over_steps(
    source: Source, query: wire.History, ranks: Sequence[int], first: int, last: int
) -> Iterator[wire.HistoryPart]:
    first, last = max(query.first, first, 1), min(query.last, last)
    if first > last:
        return
    most = min(query.most, max(_LEAST_COLUMNS, MOST_CELLS // len(ranks)))
    stride = max(stride_of(first, last, most), 1 << (max(1, query.width) - 1).bit_length())
    # Whole columns: what is cut off at an edge would be another number.
    begin, end = (first - 1) // stride, (last - 1) // stride
    first, last = begin * stride + 1, (end + 1) * stride
    whose, series = source.read_many(ranks, query.metric, first, last)
    found = fold(ranks, whose, series, first, last, stride)
    known = np.flatnonzero((found.known > 0).any(axis=1))
    if len(known):
        rows = (each[known] for each in found[1:])
        yield from parts_of_steps(
            query, [ranks[row] for row in known.tolist()], Columns(found.steps, *rows), begin, stride
        )


def _over_time(source: Source, query: wire.History, ranks: Sequence[int]) -> Iterator[wire.HistoryPart]:
    first, last = query.first, min(query.last, _LAST_S)
    if first > last:
        return
    least = max(query.width, -(-(last - first + 1) // query.most))
    level = next((level for level, width in enumerate(WIDTHS_S) if width >= least), len(WIDTHS_S) - 1)
    width = WIDTHS_S[level]
    most = min(source.columns, max(_LEAST_COLUMNS, 4 * MOST_CELLS // len(ranks)))
    end = last // width
    count = min(end - first // width + 1, most)
    if len(ranks) == 1:
        values = source.window(query.metric, level, end, count, ranks[0])
    else:
        values = source.window(query.metric, level, end, count)[ranks]
    known = np.flatnonzero(~np.isnan(values).all(axis=1))
    if len(known):
        yield from parts_of_time(query, [ranks[row] for row in known.tolist()], values[known], end - count + 1, width)
