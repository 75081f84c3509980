"""The writer of a recording of bounded size, however long the run is: a ring of steps.

The newest steps take half of the room, unchanged.  Older steps are thinned (`thinning`), level by level, so that
every level has about the same part of the other half, and each covers twice the time of the level below it.  A level
is written at its end and read and deleted at its beginning, so that whole pages are freed and used again:
the file stops growing, and is not rewritten.  All of this is done in pieces of some milliseconds.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import time
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from ddptop.agent.observer.record import recording
from ddptop.agent.observer.record.recording import INSERT_EVENT, INSERT_STEPS, Row
from ddptop.agent.observer.record.thinning import Stored, thinned
from ddptop.agent.run.files.database import DAMAGE

LEAST_BYTES: Final = 256 << 10
"""Bytes that a recording has in any case: for its tables, the `Hello` of each rank, and some hundred events."""
_JOURNAL_SHARE: Final = 8
"""One byte in so many is for the journal (`run.db-wal`)."""
BATCH_SHARE: Final = 16
"""One byte in so many is for a batch that is written before the next thinning."""
_LARGEST_JOURNAL: Final = 16 << 20
_PIECE_BYTES: Final = 4 << 20
_A_RANK: Final = 8 << 10
"""Bytes of each rank in a piece, so that it has several steps of all ranks."""
Values = tuple[Any, ...]
"""The values of a row."""
_TOGETHER: Final = 64
"""Rows that one statement inserts; SQLite takes 999 values in one at least."""
_ROW_BYTES: Final = 24
"""Bytes of a row beside its payload."""
_ODD: Final = (
    OverflowError,
    ValueError,
    TypeError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    sqlite3.DataError,
)
"""Raised for a value that no SQLite file can store."""


class Ring:
    """The recording of a run while it is written; for use from one thread."""

    def __init__(self, database: Path, world: int) -> None:
        self._database = database
        self._world = world
        self._connection: sqlite3.Connection | None = None
        self._sizes: dict[int, int] = {}
        """Bytes of steps by level."""
        self._journal_bytes = 0
        self.event_bytes = 0
        """Bytes of the events in the file."""

    def write(self, rows: Sequence[Row], budget: int) -> int:
        """Write rows in one transaction and return the number of those with a value that no file can store.

        Raises:
            DAMAGE: no row was written.
        """
        connection = self._open(budget)
        written = {INSERT_STEPS: 0, INSERT_EVENT: 0}
        odd = 0
        with connection:
            for statement, alike in itertools.groupby(rows, key=itemgetter(0)):
                values = [each for _, each in alike]
                stored = _insert(connection, statement, values)
                odd += len(values) - len(stored)
                if statement in written:
                    written[statement] += sum(_ROW_BYTES + len(each[-1]) for each in stored)
        self._sizes[0] = self._sizes.get(0, 0) + written[INSERT_STEPS]
        self.event_bytes += written[INSERT_EVENT]
        return odd

    def _open(self, budget: int) -> sqlite3.Connection:
        if self._connection is None:
            connection = recording.open_file(self._database)
            try:
                self._measure(connection)
                self._journal_bytes = min(_LARGEST_JOURNAL, max(LEAST_BYTES, budget) // _JOURNAL_SHARE)
                (page,) = connection.execute("PRAGMA page_size").fetchone()
                connection.execute(f"PRAGMA wal_autocheckpoint = {max(16, self._journal_bytes // 2 // page)}")
                connection.execute(f"PRAGMA journal_size_limit = {self._journal_bytes}")
            except DAMAGE:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _measure(self, connection: sqlite3.Connection) -> None:
        def size(table: str) -> int:
            query = f"SELECT coalesce(sum(length(payload)), 0), count(*) FROM {table}"
            payloads, rows = connection.execute(query).fetchone()
            return int(payloads) + _ROW_BYTES * int(rows)

        self._sizes = {level: size(recording.table(level)) for level in recording.levels(connection)}
        self.event_bytes = size("events")

    @property
    def used(self) -> int:
        """Bytes of the file in use, without its free pages."""
        if self._connection is None:
            return 0
        pages, free, size = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def limit_to(self, budget: int, seconds: float) -> bool:
        """Thin older steps until file and journal fit into `budget` bytes; return False where more is to be thinned.

        It takes little longer than `seconds`, except where the file is far too large.

        Raises:
            DAMAGE: the file cannot be changed.
        """
        if self._connection is None:
            return True
        room = max(LEAST_BYTES, budget)
        room -= room // _JOURNAL_SHARE + room // BATCH_SHARE
        deadline = time.monotonic() + seconds
        while (used := self.used) > room and any(self._sizes.values()):
            if time.monotonic() > deadline and used < room + room // _JOURNAL_SHARE:
                return False
            self._thin(self._connection, self._next(room - (used - sum(self._sizes.values()))))
        return True

    def _next(self, room: int) -> int:
        """Return the level to be thinned next."""
        if self._sizes.get(0, 0) > room / 2:
            return 0
        # The largest level, and of equal ones the oldest, so that all get the same size.
        older = max(self._sizes, key=lambda level: (self._sizes[level] if level else 0, level))
        return older if self._sizes[older] else 0

    def _thin(self, connection: sqlite3.Connection, level: int) -> None:
        """Thin the oldest stretch of a level, and move its remaining steps to the next level."""
        size = self._sizes[level]
        most = min(size // 8, max(_PIECE_BYTES, self._world * _A_RANK))
        last, taken = 0, 0
        rows: list[Stored] = []
        query = (
            f"SELECT rowid, rank, generation, first_seq, last_seq, payload FROM {recording.table(level)} ORDER BY rowid"
        )
        with contextlib.closing(connection.execute(query)) as found:
            for rowid, *values in found:
                last = rowid
                # A damaged file may have values of any type.
                rows.append(Stored(*values))
                taken += _ROW_BYTES + (len(values[-1]) if isinstance(values[-1], bytes) else 0)
                if taken >= most:
                    break
        stay = thinned(rows, level)
        with connection:
            connection.execute(f"DELETE FROM {recording.table(level)} WHERE rowid <= ?", (last,))
            if stay:
                recording.make_table(connection, level + 1)
                connection.executemany(f"INSERT INTO {recording.table(level + 1)} VALUES(?, ?, ?, ?, ?)", stay)
        # An empty table has size 0, even where the count was inaccurate.
        self._sizes[level] = size - taken if rows else 0
        self._sizes[level + 1] = self._sizes.get(level + 1, 0) + _bytes(stay)

    def is_held_up(self) -> bool:
        """Say whether the journal is full and cannot be emptied, because of a reader with a long transaction."""
        if self._connection is None:
            return False
        try:
            journal = self._database.with_name(self._database.name + "-wal").stat().st_size
        except OSError:
            return False
        if journal <= 2 * self._journal_bytes:
            return False
        _, frames, moved = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return bool(frames != moved)

    def close(self) -> None:
        """Close the file after the last write."""
        if self._connection is not None:
            recording.finish(self._connection)
            self._connection = None


def _insert(connection: sqlite3.Connection, statement: str, values: Sequence[Values]) -> list[Values]:
    """Execute a statement with each of these values, and return those that could be stored."""
    stored: list[Values] = []
    whole = len(values) // _TOGETHER * _TOGETHER if statement.startswith("INSERT") else 0
    head, _, row = statement.partition(" VALUES")
    # Each statement that is executed hands the interpreter to the other threads, and takes it back.
    many = f"{head} VALUES{', '.join([row] * _TOGETHER)}"
    for first in range(0, whole, _TOGETHER):
        together = values[first : first + _TOGETHER]
        try:
            connection.execute(many, [*itertools.chain.from_iterable(together)])
            stored += together
        except _ODD:
            # None of them was stored.
            stored += _insert_each(connection, statement, together)
    return stored + _insert_each(connection, statement, values[whole:])


def _insert_each(connection: sqlite3.Connection, statement: str, values: Iterable[Values]) -> list[Values]:
    stored: list[Values] = []
    for each in values:
        with contextlib.suppress(*_ODD):
            connection.execute(statement, each)
            stored.append(each)
    return stored


def _bytes(rows: Iterable[Stored]) -> int:
    return sum(_ROW_BYTES + len(row.payload) for row in rows)
