"""The SQLite file of a run: messages in as rows, the history out.

One generation of ranks after the other, so that what was trained before a restart is not
mixed with what came after.  Knows no socket.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ddptop.agent import wire

NOTHING: Final = (0, -1)
"""Generation and number of the newest record where there is none."""
_SUPERVISOR: Final = -1
_PIECE: Final = 500
"""Rows read at a time: a millisecond or two."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS
    steps(rank INTEGER, generation INTEGER, first_seq INTEGER, last_seq INTEGER, payload BLOB);
CREATE TABLE IF NOT EXISTS
    latest(kind TEXT, rank INTEGER, generation INTEGER, payload BLOB, PRIMARY KEY(kind, rank, generation));
CREATE TABLE IF NOT EXISTS events(at_ns INTEGER, payload BLOB);
"""

Row = tuple[str, tuple[Any, ...]]
"""A statement and its values."""


def read_history(database: Path) -> Iterator[wire.Telemetry]:
    """Give back a recording: who the ranks were and their steps, one generation after the other, then the events
    in order and how each rank was at last.

    Damage or absence of the file ends the iteration; what could be read before it is given.
    """
    try:
        with _reader(database) as connection:
            generations = connection.execute(
                "SELECT generation FROM latest UNION SELECT generation FROM steps ORDER BY 1"
            )
            queries = [
                (query, generation)
                for generation in generations.fetchall()
                for query in (
                    "SELECT payload FROM latest WHERE kind = 'hello' AND generation = ? ORDER BY rank",
                    "SELECT payload FROM steps WHERE generation = ? ORDER BY rowid",
                )
            ]
            queries += [
                ("SELECT payload FROM events ORDER BY at_ns, rowid", ()),
                ("SELECT payload FROM latest WHERE kind = 'beat' ORDER BY rank", ()),
                ("SELECT payload FROM latest WHERE kind = 'run'", ()),
            ]
            for query, values in queries:
                for (payload,) in connection.execute(query, values):
                    with contextlib.suppress(wire.Unreadable):
                        yield wire.read_telemetry(payload)
    except sqlite3.Error:
        return


def read_ranks(database: Path) -> Iterator[wire.Telemetry]:
    """Give back who the ranks were, one generation after the other."""
    yield from _read(database, "SELECT payload FROM latest WHERE kind = 'hello' ORDER BY generation, rank")


def read_events(database: Path) -> Iterator[wire.Telemetry]:
    """Give back the events, in order."""
    yield from _read(database, "SELECT payload FROM events ORDER BY at_ns, rowid")


def read_end(database: Path) -> Iterator[wire.Telemetry]:
    """Give back how each rank and the run were at last."""
    yield from _read(database, "SELECT payload FROM latest WHERE kind = 'beat' ORDER BY rank")
    yield from _read(database, "SELECT payload FROM latest WHERE kind = 'run'")


def read_newest_steps(database: Path, most: int) -> Iterator[wire.Telemetry]:
    """Give back the newest messages with steps, at most so many, oldest first."""
    yield from _messages(_rows(database, "SELECT payload FROM steps ORDER BY rowid DESC LIMIT ?", most)[::-1])


def read_steps(database: Path) -> Iterator[wire.Telemetry]:
    """Give back all steps, in order; the file is free between pieces, however slowly they are taken."""
    last = 0
    query = "SELECT payload, rowid FROM steps WHERE rowid > ? ORDER BY rowid LIMIT ?"
    while rows := _rows(database, query, last, _PIECE):
        last = rows[-1][1]
        yield from _messages(rows)


def _read(database: Path, query: str) -> Iterator[wire.Telemetry]:
    yield from _messages(_rows(database, query))


def _messages(rows: list[tuple[Any, ...]]) -> Iterator[wire.Telemetry]:
    for payload, *_ in rows:
        with contextlib.suppress(wire.Unreadable, TypeError):
            yield wire.read_telemetry(payload)


def _rows(database: Path, query: str, *values: int) -> list[tuple[Any, ...]]:
    """Return the rows of a query; those before the damage of a damaged file, none of an absent one."""
    rows: list[tuple[Any, ...]] = []
    with contextlib.suppress(sqlite3.Error), _reader(database) as connection:
        rows.extend(connection.execute(query, values))
    return rows


def row(message: wire.Telemetry, payload: bytes) -> Row:
    """Return the statement that keeps a message."""
    match message:
        case wire.Steps():
            seqs = [step.seq for step in message.steps]
            return "INSERT INTO steps VALUES(?, ?, ?, ?, ?)", (
                message.rank,
                message.generation,
                min(seqs),
                max(seqs),
                payload,
            )
        case wire.Event():
            return "INSERT INTO events VALUES(?, ?)", (message.at_ns, payload)
        case wire.Hello():
            latest = "hello", message.rank, message.generation
        case wire.Beat():
            latest = "beat", message.rank, 0
        case wire.RunState():
            latest = "run", _SUPERVISOR, 0
    return "INSERT OR REPLACE INTO latest VALUES(?, ?, ?, ?)", (*latest, payload)


@contextlib.contextmanager
def _reader(database: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        yield connection


def last_kept(database: Path, rank: int) -> tuple[int, int]:
    """Return generation and number of the newest record of a rank in the file, `NOTHING` where there is none."""
    query = "SELECT generation, max(last_seq) FROM steps WHERE rank = ? GROUP BY generation ORDER BY 1 DESC LIMIT 1"
    try:
        with _reader(database) as connection:
            return connection.execute(query, (rank,)).fetchone() or NOTHING
    except sqlite3.Error:
        return NOTHING


def open_file(database: Path) -> sqlite3.Connection:
    """Open the file for the one who writes it; raises `sqlite3.Error`."""
    connection = sqlite3.connect(database)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(_SCHEMA)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def finish(connection: sqlite3.Connection) -> None:
    """Close the file for good."""
    # Leaving WAL mode takes run.db-wal and run.db-shm away; a reader that is still there keeps them.
    with contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
