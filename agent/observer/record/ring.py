"""The writer of a recording that stays within a number of bytes, however long the run: a ring of steps.

The newest steps stand whole in half of the room.  What is older is thinned (`thinning`), level by level, so that
every level has about the same part of the other half and each goes back twice as far as the one before.  A level
is written at its end and read and deleted at its beginning, so that pages come free whole and are used again:
the file stops growing without ever being written anew.  All of this is done in pieces of some milliseconds.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from ddptop.agent.observer.record import recording
from ddptop.agent.observer.record.recording import Row
from ddptop.agent.observer.record.thinning import Stored, thinned
from ddptop.agent.run.files.database import DAMAGE

LEAST_BYTES: Final = 256 << 10
"""Room that a recording has in any case: its tables, who the ranks were, and some hundred events."""
_JOURNAL_SHARE: Final = 8
"""Of so many bytes one is for the journal (`run.db-wal`)."""
BATCH_SHARE: Final = 16
"""Of so many bytes one is for what is written before there is room for it again."""
_LARGEST_JOURNAL: Final = 16 << 20
_PIECE_BYTES: Final = 4 << 20
_A_RANK: Final = 8 << 10
"""A piece has so many bytes of each rank, so that there are several steps of all ranks in it."""
_ROW_BYTES: Final = 24
"""What a row takes beside its payload."""
_ODD: Final = (
    OverflowError,
    ValueError,
    TypeError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    sqlite3.DataError,
)
"""Raised for a value that cannot be stored, whatever the state of the file."""


class Ring:
    """The recording of a run while it is written; of one thread."""

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
        """Write rows in one transaction and return how many of them could not be stored, whatever the file.

        Raises:
            DAMAGE: nothing of it was written.
        """
        connection = self._open(budget)
        steps = events = odd = 0
        with connection:
            for statement, values in rows:
                try:
                    connection.execute(statement, values)
                except _ODD:
                    odd += 1
                    continue
                if statement.startswith("INSERT INTO steps"):
                    steps += _ROW_BYTES + len(values[-1])
                elif statement.startswith("INSERT INTO events"):
                    events += _ROW_BYTES + len(values[-1])
        self._sizes[0] = self._sizes.get(0, 0) + steps
        self.event_bytes += events
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
        """Bytes of the file that are in use."""
        if self._connection is None:
            return 0
        pages, free, size = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def limit_to(self, budget: int, seconds: float) -> bool:
        """Thin older steps until file and journal fit into `budget` bytes; return False where there is more to be done.

        It takes little longer than so many seconds, except where much has come at once.

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
        """Return the level to be thinned."""
        if self._sizes.get(0, 0) > room / 2:
            return 0
        # As much of each: the largest one, and of equal ones the older.
        older = max(self._sizes, key=lambda level: (self._sizes[level] if level else 0, level))
        return older if self._sizes[older] else 0

    def _thin(self, connection: sqlite3.Connection, level: int) -> None:
        """Move what stays of the oldest stretch of a level to the next one."""
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
                # A damaged file may hold anything there.
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
        # An empty table measures nothing, whatever was counted before.
        self._sizes[level] = size - taken if rows else 0
        self._sizes[level + 1] = self._sizes.get(level + 1, 0) + _bytes(stay)

    def is_held_up(self) -> bool:
        """Say whether the journal is full and cannot be emptied, because somebody has been reading for so long."""
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
        """Close the file for good."""
        if self._connection is not None:
            recording.finish(self._connection)
            self._connection = None


def _bytes(rows: Iterable[Stored]) -> int:
    return sum(_ROW_BYTES + len(row.payload) for row in rows)
