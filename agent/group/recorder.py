"""The memory of a run: a subscriber to every rank that writes the run's SQLite file.

Payloads are stored as they came, one transaction a second, in a thread of its own: neither
a slow nor a failing disk reaches supervision.  The `read_*` functions give the recording
back, also while it is being written.
"""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import zmq

from ddptop.agent import wire

BATCH_S: Final = 1.0
MOST_BYTES: Final = 512 << 20
"""Size of the file at which no more steps and events of ranks are taken in."""

_MOST_A_BATCH: Final = 20_000
_PIECE: Final = 500
"""Rows read at a time: a millisecond or two."""
_HIGH_WATER: Final = 10_000
_LARGEST: Final = 2**63 - 1
"""SQLite's largest integer; a hostile number beyond it is not a message of ours."""
_SUPERVISOR: Final = -1
_KINDS: Final = {wire.Hello: "hello", wire.Beat: "beat"}

_SCHEMA = """
CREATE TABLE IF NOT EXISTS steps(rank INTEGER, first_seq INTEGER, last_seq INTEGER, payload BLOB);
CREATE TABLE IF NOT EXISTS latest(kind TEXT, rank INTEGER, payload BLOB, PRIMARY KEY(kind, rank));
CREATE TABLE IF NOT EXISTS events(at_ns INTEGER, payload BLOB);
"""

Row = tuple[str, tuple[Any, ...]]
"""A statement and its values."""


class Recorder:
    """Writes what the ranks publish and what the supervisor adds."""

    def __init__(
        self, context: zmq.Context[Any], database: Path, world: int, report: Callable[[str, str], None]
    ) -> None:
        """Prepare a recorder of `world` ranks; `report` takes text and level of what goes wrong, in any thread."""
        self.failures = 0
        """Batches that the disk did not take."""
        self.refused = 0
        """Messages that could not be read, or claimed to be from a rank that does not exist."""
        self._context = context
        self._database = database
        self._world = world
        self._report = report
        self._addresses: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._own: queue.SimpleQueue[wire.Event | wire.RunState] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._followed = 0
        self._full = False
        # A daemon: a disk that hangs forever must not keep the supervisor from ending.
        self._thread = threading.Thread(target=self._guarded, name="recorder", daemon=True)

    def start(self) -> None:
        """Begin to record."""
        self._thread.start()

    def follow(self, address: str) -> None:
        """Subscribe to one more rank."""
        self._addresses.put(address)

    def add(self, message: wire.Event | wire.RunState) -> None:
        """Record a message of the supervisor's own."""
        self._own.put(message)

    def close(self, timeout_s: float = 3.0) -> bool:
        """Write what is left and close the file; False when the disk does not let go in time."""
        self._stop.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _guarded(self) -> None:
        try:
            self._work()
        except Exception as error:  # a wall: a fault in here must be seen, and must not reach supervision
            self._report(f"recording has stopped: {error!r}", "error")

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        with self._context.socket(zmq.SUB) as socket:
            socket.linger = 0
            socket.rcvhwm = _HIGH_WATER
            for topic in (wire.TOPIC_HELLO, wire.TOPIC_BEAT, wire.TOPIC_STEPS, wire.TOPIC_EVENT):
                socket.subscribe(topic)
            ending = False
            while not ending:
                # Ranks appear within moments of each other, and what they publish before we listen is lost.
                ending = self._stop.wait(BATCH_S if self._followed >= self._world else 0.1)
                self._connect(socket)
                rest = True
                while rest:
                    rows, rest = self._take(socket)
                    if rows:
                        connection = self._write(connection, rows)
        if connection is not None:
            _finish(connection)

    def _connect(self, socket: zmq.Socket[bytes]) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                address = self._addresses.get_nowait()
                try:
                    socket.connect(address)
                    self._followed += 1
                except zmq.ZMQError as error:
                    self._report(f"recording: {error} ({address})", "warning")

    def _take(self, socket: zmq.Socket[bytes]) -> tuple[list[Row], bool]:
        """Return what has come, and whether there may be more."""
        rows: list[Row] = []
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._own.get_nowait()
                rows.append(_row(message, wire.encode(message)))
        try:
            for _ in range(_MOST_A_BATCH):
                row = self._read(socket.recv_multipart(zmq.NOBLOCK))
                if row is not None:
                    rows.append(row)
        except zmq.Again:
            return rows, False
        return rows, not self._stop.is_set()

    def _read(self, frames: list[bytes]) -> Row | None:
        try:
            message = wire.read_telemetry(frames[-1])
        except wire.Unreadable:
            self.refused += 1
            return None
        if not self._is_sound(message):
            self.refused += 1
            return None
        if self._full and isinstance(message, wire.Steps | wire.Event):
            return None
        return _row(message, frames[-1])

    def _is_sound(self, message: wire.Telemetry) -> bool:
        match message:
            case wire.RunState():
                return False  # the supervisor's alone
            case wire.Event():
                return 0 <= message.at_ns <= _LARGEST and (message.rank is None or 0 <= message.rank < self._world)
            case wire.Steps():
                numbers = [step.seq for step in message.steps]
                return (
                    0 <= message.rank < self._world and bool(numbers) and 0 <= min(numbers) <= max(numbers) <= _LARGEST
                )
            case _:
                return 0 <= message.rank < self._world

    def _write(self, connection: sqlite3.Connection | None, rows: list[Row]) -> sqlite3.Connection | None:
        try:
            connection = connection or _open(self._database)
            with connection:
                for statement, values in rows:
                    connection.execute(statement, values)
            pages, size = (connection.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "page_size"))
        except sqlite3.Error as error:
            self.failures += 1
            if self.failures == 1:
                self._report(f"recording fails, history will have gaps: {error}", "warning")
            return connection
        if pages * size > MOST_BYTES and not self._full:
            self._full = True
            self._report(f"recording has reached {MOST_BYTES >> 20} MiB: no more steps are kept", "warning")
        return connection


def read_history(database: Path) -> Iterator[wire.Telemetry]:
    """Give back a recording: who the ranks were, their steps and events in order, how each was at last.

    Damage or absence of the file ends the iteration; what could be read before it is given.
    """
    yield from read_ranks(database)
    yield from read_steps(database)
    yield from read_events(database)
    yield from read_end(database)


def read_ranks(database: Path) -> Iterator[wire.Telemetry]:
    """Give back who the ranks were."""
    yield from _read(database, "SELECT payload FROM latest WHERE kind = 'hello' ORDER BY rank")


def read_events(database: Path) -> Iterator[wire.Telemetry]:
    """Give back the events, in order."""
    yield from _read(database, "SELECT payload FROM events ORDER BY at_ns, rowid")


def read_end(database: Path) -> Iterator[wire.Telemetry]:
    """Give back how each rank and the run were at last."""
    yield from _read(database, "SELECT payload FROM latest WHERE kind = 'beat' ORDER BY rank")
    yield from _read(database, "SELECT payload FROM latest WHERE kind = 'run'")


def read_newest_steps(database: Path, most: int) -> Iterator[wire.Telemetry]:
    """Give back the newest messages with steps, at most so many, oldest first."""
    query = f"SELECT payload FROM steps ORDER BY rowid DESC LIMIT {most}"
    yield from _messages(_rows(database, query)[::-1])


def read_steps(database: Path) -> Iterator[wire.Telemetry]:
    """Give back all steps, in order; the file is free between pieces, however slowly they are taken."""
    last = 0
    while True:
        rows = _rows(database, f"SELECT payload, rowid FROM steps WHERE rowid > {last} ORDER BY rowid LIMIT {_PIECE}")
        if not rows:
            return
        last = rows[-1][1]
        yield from _messages(rows)


def _read(database: Path, query: str) -> Iterator[wire.Telemetry]:
    yield from _messages(_rows(database, query))


def _messages(rows: list[tuple[Any, ...]]) -> Iterator[wire.Telemetry]:
    for payload, *_ in rows:
        with contextlib.suppress(wire.Unreadable, TypeError):
            yield wire.read_telemetry(payload)


def _rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query; none where the file is damaged or absent."""
    rows: list[tuple[Any, ...]] = []
    try:
        with contextlib.closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            for row in connection.execute(query):
                rows.append(row)
    except sqlite3.Error:
        return rows
    return rows


def _row(message: wire.Telemetry, payload: bytes) -> Row:
    if isinstance(message, wire.Steps):
        seqs = [step.seq for step in message.steps]
        return "INSERT INTO steps VALUES(?, ?, ?, ?)", (message.rank, min(seqs), max(seqs), payload)
    if isinstance(message, wire.Event):
        return "INSERT INTO events VALUES(?, ?)", (message.at_ns, payload)
    kind, rank = ("run", _SUPERVISOR) if isinstance(message, wire.RunState) else (_KINDS[type(message)], message.rank)
    return "INSERT OR REPLACE INTO latest VALUES(?, ?, ?)", (kind, rank, payload)


def _open(database: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(database)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(_SCHEMA)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _finish(connection: sqlite3.Connection) -> None:
    # Leaving WAL mode takes run.db-wal and run.db-shm away; a reader that is still there keeps them.
    with contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
