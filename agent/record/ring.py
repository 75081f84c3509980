"""The writer of a recording of bounded size, however long the run is.

The newest steps stay as they are, as far as there is room; of older ones there are the numbers, in ever wider buckets
(`history.stored`). Steps are written at the end of their table and removed at its beginning, so that whole pages are
freed and used again: the file stops growing, and is not rewritten. It is done in pieces of some milliseconds.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import time
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ddptop.agent.record import recording
from ddptop.agent.record.recording import INSERT_EVENT, INSERT_STEPS, Row
from ddptop.agent.run.files.database import DAMAGE

if TYPE_CHECKING:
    from ddptop.agent.record.history.stored import Writer

LEAST_BYTES: Final = 256 << 10
"""Bytes that a recording has in any case: for its tables, the `Hello` of each rank, and some hundred events."""
_JOURNAL_SHARE: Final = 8
"""One byte in so many is for the journal (`run.db-wal`)."""
BATCH_SHARE: Final = 16
"""One byte in so many is for a batch that is written before steps are removed."""
_LARGEST_JOURNAL: Final = 16 << 20
_PIECE_BYTES: Final = 4 << 20
"""Bytes of steps that are removed at once."""
_HISTORY_SHARE: Final = 4
"""The history may take one part in so many of the recording's bytes."""
MOST_EVENTS: Final = 20_000
"""The newest events that are kept."""
_EVENTS_SHARE: Final = 4
"""They may take one part in so many of the recording's bytes."""
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
        self.history: Writer | None = None
        """The numbers of the steps; None until the file was opened."""
        self._step_bytes = 0
        self._journal_bytes = 0
        self._event_bytes = self._events = 0
        """Bytes and number of the events in the file."""

    def write(self, rows: Sequence[Row], budget: int) -> int:
        """Write rows, and the numbers that wait, in one transaction; return how many rows no file can store.

        Raises:
            DAMAGE: no row was written.
        """
        connection, history = self.open(budget)
        written = {INSERT_STEPS: 0, INSERT_EVENT: 0}
        odd = events = 0
        try:
            with connection:
                for statement, alike in itertools.groupby(rows, key=itemgetter(0)):
                    values = [each for _, each in alike]
                    stored = _insert(connection, statement, values)
                    odd += len(values) - len(stored)
                    if statement in written:
                        written[statement] += sum(_ROW_BYTES + len(each[-1]) for each in stored)
                    events += len(stored) if statement == INSERT_EVENT else 0
                history.write()
        except DAMAGE:
            history.failed()
            raise
        history.written()
        self._step_bytes += written[INSERT_STEPS]
        self._event_bytes += written[INSERT_EVENT]
        self._events += events
        return odd

    def open(self, budget: int) -> tuple[sqlite3.Connection, Writer]:
        """Open the file, where it is not open yet; raises one of `DAMAGE`."""
        if self._connection is None or self.history is None:
            # Here, because it imports NumPy: neither the start of a run nor a look at it waits for that.
            from ddptop.agent.record.history.stored import Writer

            connection = recording.open_file(self._database)
            try:
                self._step_bytes, _ = _size(connection, "steps")
                self._event_bytes, self._events = _size(connection, "events")
                self._journal_bytes = min(_LARGEST_JOURNAL, max(LEAST_BYTES, budget) // _JOURNAL_SHARE)
                (page,) = connection.execute("PRAGMA page_size").fetchone()
                connection.execute(f"PRAGMA wal_autocheckpoint = {max(16, self._journal_bytes // 2 // page)}")
                connection.execute(f"PRAGMA journal_size_limit = {self._journal_bytes}")
                self.history = Writer(connection, self._world)
            except DAMAGE:
                connection.close()
                raise
            self._connection = connection
        return self._connection, self.history

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
        """Fold older numbers, and remove the oldest events and steps, until file and journal fit into `budget` bytes.

        It takes little longer than `seconds`, except where the file is far too large; returns False where more is to
        be done.

        Raises:
            DAMAGE: the file cannot be changed.
        """
        if self._connection is None or self.history is None:
            return True
        room = max(LEAST_BYTES, budget)
        self._limit_events(self._connection, room // _EVENTS_SHARE)
        deadline = time.monotonic() + seconds
        while self.history.fold(room // _HISTORY_SHARE):
            if time.monotonic() > deadline:
                return False
        room -= room // _JOURNAL_SHARE + room // BATCH_SHARE
        while (used := self.used) > room and self._step_bytes:
            if time.monotonic() > deadline and used < room + room // _JOURNAL_SHARE:
                return False
            self._remove_oldest(self._connection)
        return True

    def _limit_events(self, connection: sqlite3.Connection, room: int) -> None:
        """Remove the oldest events until the others are few enough and fit into `room` bytes."""
        oldest = "SELECT rowid FROM events ORDER BY rowid LIMIT ?"
        while self._events and (self._events > MOST_EVENTS or self._event_bytes > room):
            with connection:
                connection.execute(f"DELETE FROM events WHERE rowid IN ({oldest})", (self._events // 8 + 1,))
            self._event_bytes, self._events = _size(connection, "events")

    def _remove_oldest(self, connection: sqlite3.Connection) -> None:
        """Remove the oldest steps; of each rank and generation among them the last message is kept beside them."""
        last, taken = 0, 0
        most = min(max(self._step_bytes // 8, 1), _PIECE_BYTES)
        with contextlib.closing(connection.execute("SELECT rowid, length(payload) FROM steps ORDER BY rowid")) as found:
            for rowid, size in found:
                last = rowid
                taken += _ROW_BYTES + (size or 0)
                if taken >= most:
                    break
        with connection:
            connection.execute(recording.KEEP_LAST, (last,))
            connection.execute("DELETE FROM steps WHERE rowid <= ?", (last,))
        # An empty table has size 0, even where the count was inaccurate.
        self._step_bytes = max(0, self._step_bytes - taken) if taken else 0

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
            self._connection = self.history = None


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


def _size(connection: sqlite3.Connection, table: str) -> tuple[int, int]:
    """Return the bytes of a table's rows, and their number."""
    query = f"SELECT coalesce(sum(length(payload)), 0), count(*) FROM {table}"
    payloads, rows = connection.execute(query).fetchone()
    return int(payloads) + _ROW_BYTES * int(rows), int(rows)
