"""The answer to a question about the history, from the record of a run that goes on or has ended."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np

from ddptop.agent import wire
from ddptop.agent.record.history.aligned import align
from ddptop.agent.record.history.columns import Columns, fold, parts_of_steps, parts_of_time, stride_of
from ddptop.agent.record.history.question import Question, nothing
from ddptop.agent.record.history.stored import Stored
from ddptop.agent.record.history.whole import WholeSteps
from ddptop.agent.run.files.database import DAMAGE, is_locked
from ddptop.agent.wire.frames import NO_HOSTS, HostFrames
from ddptop.agent.wire.steps.numbers import OVER_TIME, WIDTHS_S, columns_for

MOST_CELLS: Final = 1 << 19
"""Columns of all ranks together in one answer: 512 columns of 1,024 ranks, 10 MB."""
MOST_CALLS: Final = 1 << 15
"""Steps and collectives of all ranks together in one answer: one step of 64 ranks with 500 collectives each, 2 MB."""
_CALLS_A_PART: Final = 1 << 12
_STEPS_AT_ONCE: Final = 8
_LEAST_COLUMNS: Final = 16
_LAST_S: Final = 4_000_000_000
"""The year 2096."""


def from_file(database: Path, world: int, query: Question, hosts: HostFrames = NO_HOSTS) -> list[wire.HistoryAnswer]:
    """Return the answer to a question about a run that has ended, from its file, which is held no longer than that.

    While another process holds the file, nothing is complete.

    Args:
        database: the file.
        world: number of ranks.
        query: the question.
        hosts: those of a run on several, with what is known of their clocks.
    """
    try:
        uri = f"{database.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=0.0)) as connection:
            # One transaction: an observer may have come back, and fold meanwhile.
            connection.execute("BEGIN")
            return list(answer(Stored(connection, world), query, hosts))
    except DAMAGE as problem:
        if is_locked(problem):
            return nothing(query, wire.Reply(query.id, True), complete=False)
        return nothing(query, wire.Reply(query.id, False, f"the record cannot be read: {problem}"))


def answer(stored: Stored, query: Question, hosts: HostFrames = NO_HOSTS) -> Iterator[wire.HistoryAnswer]:
    """Yield the answer to a question: an `Extent` or `KeptSteps`, parts below the bound on messages, and a `Reply`."""
    if isinstance(query, wire.WholeSteps):
        yield from _whole_steps(stored.whole, query, hosts)
    else:
        yield from _numbers(stored, query)


def _numbers(stored: Stored, query: wire.History) -> Iterator[wire.HistoryAnswer]:
    world = range(stored.world)
    ranks = list(world) if query.ranks is None else sorted({rank for rank in query.ranks if rank in world})
    span = stored.span(ranks or world)
    first, last = (0, 0) if span is None else span
    names = tuple(stored.names)
    yield wire.Extent(query.id, first, last, stored.last, names=names, refused=stored.progress.refused)
    problem = None
    if not query.metric or not ranks:
        pass
    elif query.by == "step":
        if not stored.has(query.metric):
            problem = f"no number over the steps is called {query.metric}"
        elif span is not None:
            yield from _over_steps(stored, query, ranks, *span)
    elif query.by == "time":
        if query.metric not in OVER_TIME:
            problem = f"no number over time is called {query.metric}"
        else:
            yield from _over_time(stored, query, ranks)
    else:
        problem = "a history is by step or by time"
    yield wire.Reply(query.id, problem is None, problem or "")


def _over_steps(
    stored: Stored, query: wire.History, ranks: Sequence[int], first: int, last: int
) -> Iterator[wire.HistoryPart]:
    first, last = max(query.first, first, 1), min(query.last, last)
    if first > last:
        return
    most = min(query.most, max(_LEAST_COLUMNS, MOST_CELLS // len(ranks)))
    stride = max(stride_of(first, last, most), 1 << (max(1, query.width) - 1).bit_length())
    # Whole columns: what is cut off at an edge would be another number.
    begin, end = (first - 1) // stride, (last - 1) // stride
    first, last = begin * stride + 1, (end + 1) * stride
    whose, series = stored.by_step(query.metric, first, last)
    found = fold(ranks, whose, series, first, last, stride)
    known = np.flatnonzero((found.known > 0).any(axis=1))
    if len(known):
        rows = (each[known] for each in found[1:])
        yield from parts_of_steps(
            query, [ranks[row] for row in known.tolist()], Columns(found.steps, *rows), begin, stride
        )


def _over_time(stored: Stored, query: wire.History, ranks: Sequence[int]) -> Iterator[wire.HistoryPart]:
    first, last = query.first, min(query.last, _LAST_S)
    if first > last:
        return
    least = max(query.width, -(-(last - first + 1) // query.most))
    level = next((level for level, width in enumerate(WIDTHS_S) if width >= least), len(WIDTHS_S) - 1)
    width = WIDTHS_S[level]
    most = min(columns_for(stored.world), max(_LEAST_COLUMNS, 4 * MOST_CELLS // len(ranks)))
    end = last // width + 1
    begin = max(first // width, end - most)
    values = stored.by_time(query.metric, begin, end, width, ranks)
    known = np.flatnonzero(~np.isnan(values).all(axis=1))
    if len(known):
        yield from parts_of_time(query, [ranks[row] for row in known.tolist()], values[known], begin, width)


def _whole_steps(stored: WholeSteps, query: wire.WholeSteps, hosts: HostFrames) -> Iterator[wire.HistoryAnswer]:
    ranks = sorted({rank for rank in query.ranks if rank < stored.world})
    numbers = stored.numbers(ranks)
    compared = sum(host.offset_ms is not None for host in hosts)
    yield wire.KeptSteps(query.id, tuple(numbers), generation=stored.generation, compared=compared)
    wanted = [number for number in numbers if query.first <= number <= query.last][-query.most :]
    clocks = hosts.clock if hosts.several else None
    part, size, total = list[wire.AlignedStep](), 0, 0
    while wanted and total < MOST_CALLS:
        # A row has several steps of a rank, and is read once for all of these.
        some, wanted = wanted[-_STEPS_AT_ONCE:], wanted[:-_STEPS_AT_ONCE]
        records = stored.records(ranks, some)
        for number in reversed(some):
            for step in align(records[number], stored.world, clocks):
                calls = 1 + len(step.step.collectives)
                if part and size + calls > _CALLS_A_PART:
                    yield wire.AlignedSteps(query.id, tuple(part))
                    part, size = [], 0
                part.append(step)
                size += calls
                total += calls
            if total >= MOST_CALLS:
                break
    if part:
        yield wire.AlignedSteps(query.id, tuple(part))
    yield wire.Reply(query.id, True)
