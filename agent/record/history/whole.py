"""The newest steps in the run's SQLite file as ranks have recorded them, found by their numbers.

For the thread of its connection. What has come since is read with the next question; of ranks that nobody has asked
about nothing is read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Final

from ddptop.agent import wire

RECORDS: Final = 65_536
"""Records that are found of all ranks together, about."""
LEAST: Final = 16
"""Steps that are found of each rank at least."""
MOST_ROWS: Final = 65_536
"""Newest rows that are looked at."""
MOST_BYTES: Final = 32 << 20
"""Bytes of rows that are read for that."""
_AT_ONCE: Final = 500
"""Rows that one statement reads."""


@dataclass(slots=True)
class _Found:
    """The newest steps of one rank."""

    rows: dict[int, int] = field(default_factory=dict)
    """By number of the step, the row that has it; rising."""
    seq: int = -1
    """Number of the newest record."""
    step: int = 0
    """Its step."""

    def take(self, row: int, message: wire.NumberedSteps, most: int) -> None:
        """Take in a row that follows those before."""
        newest = message.steps[-1].seq
        if newest <= self.seq:
            # Another process in the place of the one before.
            self.rows.clear()
            self.step = 0
        for each in message.steps:
            if each.step < self.step and each.seq > self.seq:
                # It has begun to count anew.
                self.rows.clear()
            self.seq, self.step = each.seq, each.step
            self.rows[each.step] = row
            if len(self.rows) > most:
                del self.rows[next(iter(self.rows))]
        self.seq = newest


class WholeSteps:
    """The newest whole steps of a run."""

    def __init__(self, connection: sqlite3.Connection, world: int) -> None:
        """Read nothing yet."""
        self.world = world
        self._connection = connection
        self._most = max(LEAST, min(wire.MOST_WHOLE, RECORDS // max(1, world)))
        self.generation = 0
        """The newest that has steps."""
        self._found: dict[int, _Found] = {}
        self._last = 0
        """The row up to which has been read."""

    def numbers(self, ranks: Collection[int]) -> Sequence[int]:
        """Return the newest steps that all of some ranks have made, rising; where there is none, those of any of them.

        Raises one of `DAMAGE` where the file is unusable.
        """
        self._follow(ranks)
        found = [self._found[rank].rows.keys() for rank in ranks]
        whole = set(found[0]).intersection(*found[1:]) if found else set()
        return sorted(whole or set().union(*found))[-self._most :]

    def records(self, ranks: Collection[int], numbers: Collection[int]) -> Mapping[int, Mapping[int, wire.Step]]:
        """Return the records of steps out of `numbers`, by the number of the step and by rank."""
        found: dict[int, dict[int, wire.Step]] = {number: {} for number in numbers}
        wanted = {row for rank in ranks for number in numbers if (row := self._found[rank].rows.get(number))}
        for row, payload in self._payloads(sorted(wanted)):
            with suppress(wire.Unreadable, TypeError):
                message = wire.read_telemetry(payload)
                if isinstance(message, wire.Steps) and message.rank in self._found:
                    rows = self._found[message.rank].rows
                    found_of = ((step, found.get(step.step)) for step in message.steps if rows.get(step.step) == row)
                    for step, together in found_of:
                        if together is not None:
                            together[message.rank] = step
        return found

    def _payloads(self, rows: Sequence[int]) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        for begin in range(0, len(rows), _AT_ONCE):
            part = rows[begin : begin + _AT_ONCE]
            query = f"SELECT rowid, payload FROM steps WHERE rowid IN ({', '.join('?' * len(part))})"
            found += self._connection.execute(query, part)
        return found

    def _follow(self, ranks: Collection[int]) -> None:
        """Read what has been written of some ranks, and of all that have been asked about before."""
        first, last = self._connection.execute("SELECT min(rowid), max(rowid) FROM steps").fetchone()
        first, last = first or 0, last or 0
        if last < self._last:
            # All rows were removed, and their numbers are given anew.
            self._found.clear()
            self._last = 0
        new = set(ranks) - self._found.keys()
        known = set(self._found)
        self._found |= {rank: _Found() for rank in new}
        self._take(new, last - MOST_ROWS)
        self._take(known, max(self._last, last - MOST_ROWS))
        self._last = last
        for found in self._found.values():
            while found.rows and found.rows[oldest := next(iter(found.rows))] < first:
                del found.rows[oldest]

    def _take(self, ranks: Collection[int], after: int) -> None:
        """Take in the newest rows of some ranks behind a row, as far as they are wanted."""
        lacking, size = dict.fromkeys(ranks, self._most), 0
        read: list[tuple[int, int, wire.NumberedSteps]] = []
        query = f"""SELECT rowid, rank, generation, payload FROM steps
            WHERE rowid > ? AND rank IN ({", ".join(map(str, ranks))}) ORDER BY rowid DESC"""
        with closing(self._connection.execute(query, (after,))) as rows:
            for row, rank, generation, payload in rows:
                if lacking.get(rank, 0) <= 0:
                    continue
                with suppress(wire.Unreadable, TypeError):
                    message = wire.read_numbers(payload)
                    if message.steps and message.rank == rank and isinstance(generation, int):
                        lacking[rank] -= len(message.steps)
                        size += len(payload)
                        read.append((row, generation, message))
                if size > MOST_BYTES or all(left <= 0 for left in lacking.values()):
                    break
        for row, generation, message in reversed(read):
            if generation > self.generation:
                # The group was restarted: its steps from before are no steps of these ranks.
                self.generation = generation
                self._found = {rank: _Found() for rank in self._found}
            if generation == self.generation:
                self._found[message.rank].take(row, message, self._most)
