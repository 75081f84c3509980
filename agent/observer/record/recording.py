"""The SQLite file of a run: messages in as rows, the history out.

One generation of ranks after the other, so that what was trained before a restart is not mixed with what came
after.  The newest steps stand in the table `steps` as they came; older ones, of which only some are left, in
`steps_1`, `steps_2` and so on, the oldest in the highest (see `ring`).  A file without those is read as well.
Knows no socket.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ddptop.agent import wire
from ddptop.agent.observer.record.thinning import without_seen
from ddptop.agent.run.files.database import DAMAGE

NOTHING: Final = (0, -1)
"""Generation and number of the newest record where there is none."""
_SUPERVISOR: Final = -1
_PIECE: Final = 500
"""Rows read at a time: a millisecond or two."""
_TABLE: Final = re.compile(r"steps(?:_([1-9][0-9]?))?")

_STEPS: Final = """CREATE TABLE IF NOT EXISTS
    {table}(rank INTEGER, generation INTEGER, first_seq INTEGER, last_seq INTEGER, payload BLOB);
"""
_SCHEMA: Final = f"""
{_STEPS.format(table="steps")}
CREATE TABLE IF NOT EXISTS
    latest(kind TEXT, rank INTEGER, generation INTEGER, payload BLOB, PRIMARY KEY(kind, rank, generation));
CREATE TABLE IF NOT EXISTS events(at_ns INTEGER, payload BLOB);
"""

Row = tuple[str, tuple[Any, ...]]
"""A statement and its values."""


def table(level: int) -> str:
    """Return the table of the steps that were thinned so many times."""
    return f"steps_{level}" if level else "steps"


def make_table(connection: sqlite3.Connection, level: int) -> None:
    """Make the table of a level, where it is not there yet."""
    connection.execute(_STEPS.format(table=table(level)))


def levels(connection: sqlite3.Connection) -> list[int]:
    """Return the levels of steps in the file, the oldest steps' first."""
    names = (str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'"))
    return sorted((int(found[1] or 0) for name in names if (found := _TABLE.fullmatch(name))), reverse=True)


def read_history(database: Path) -> Iterator[wire.Telemetry]:
    """Give back a recording: who the ranks were and their steps, one generation after the other, then the events
    in order and how each rank was at last.

    Damage or absence of the file ends the iteration; what could be read before it is given.  Of older steps some
    may be left out on purpose: a gap in their numbers does not say that they were missed.
    """
    for generation in _generations(database):
        query = "SELECT payload FROM latest WHERE kind = 'hello' AND generation = ? ORDER BY rank"
        yield from _messages(_rows(database, query, generation))
        yield from _walk(database, generation)
    yield from read_events(database)
    yield from read_end(database)


def _generations(database: Path) -> list[int]:
    found: set[int] = set()
    with contextlib.suppress(*DAMAGE), _reader(database) as connection:
        for source in ("latest", *map(table, levels(connection))):
            with contextlib.suppress(*DAMAGE):
                found.update(number for (number,) in connection.execute(f"SELECT DISTINCT generation FROM {source}"))
    return sorted(number for number in found if isinstance(number, int))


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
    rows: list[tuple[Any, ...]] = []
    with contextlib.suppress(*DAMAGE), _reader(database) as connection:
        # One moment of the file, while its writer moves rows from level to level.
        connection.execute("BEGIN")
        for level in reversed(levels(connection)):
            if len(rows) >= most:
                break
            with contextlib.suppress(*DAMAGE):
                query = f"SELECT payload FROM {table(level)} ORDER BY rowid DESC LIMIT ?"
                rows.extend(connection.execute(query, (most - len(rows),)))
    yield from _messages(rows[::-1])


def read_steps(database: Path) -> Iterator[wire.Telemetry]:
    """Give back all steps that are left, in order; the file is free between pieces, however slowly they are taken."""
    yield from _walk(database)


def _walk(database: Path, generation: int | None = None) -> Iterator[wire.Telemetry]:
    """Give back the steps level by level, each once, though the writer may thin them between two pieces."""
    done: dict[int, int] = {}
    """By level, the last row read."""
    seen: dict[tuple[int, int], int] = {}
    """By rank and generation, the number of the last record given: a row may have moved to another level since."""
    while rows := _piece(database, generation, done):
        for rank, of, first, last, payload in rows:
            known = seen.get((rank, of), -1)
            for message in _messages([(payload,)]):
                if isinstance(message, wire.Steps) and last > known:
                    seen[rank, of] = last
                    yield message if first > known else without_seen(message, known)


def _piece(database: Path, generation: int | None, done: dict[int, int]) -> list[tuple[Any, ...]]:
    """Return the next rows, of the highest level where there are any: what has moved up meanwhile comes first."""
    rows: list[tuple[Any, ...]] = []
    with contextlib.suppress(*DAMAGE), _reader(database) as connection:
        for level in levels(connection):
            with contextlib.suppress(*DAMAGE):
                for rowid, *values in connection.execute(
                    f"SELECT rowid, rank, generation, first_seq, last_seq, payload FROM {table(level)} "
                    "WHERE rowid > ? AND (? IS NULL OR generation = ?) ORDER BY rowid LIMIT ?",
                    (done.get(level, 0), generation, generation, _PIECE),
                ):
                    done[level] = rowid
                    if all(isinstance(value, int) for value in values[:4]):
                        rows.append(tuple(values))
            if rows:
                break
    return rows


def _read(database: Path, query: str) -> Iterator[wire.Telemetry]:
    yield from _messages(_rows(database, query))


def _messages(rows: list[tuple[Any, ...]]) -> Iterator[wire.Telemetry]:
    for payload, *_ in rows:
        with contextlib.suppress(wire.Unreadable, TypeError):
            yield wire.read_telemetry(payload)


def _rows(database: Path, query: str, *values: int) -> list[tuple[Any, ...]]:
    """Return the rows of a query; those before the damage of a damaged file, none of an absent one."""
    rows: list[tuple[Any, ...]] = []
    with contextlib.suppress(*DAMAGE), _reader(database) as connection:
        rows.extend(connection.execute(query, values))
    return rows


def row(message: wire.Telemetry, payload: bytes) -> Row:
    """Return the statement that stores a message; raises `ValueError` for one that is not recorded."""
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
        case wire.Summary():
            raise ValueError("summaries are not recorded")
    return "INSERT OR REPLACE INTO latest VALUES(?, ?, ?, ?)", (*latest, payload)


def rewritten(before: bytes, after: bytes) -> Row:
    """Return the statement that puts another text into the newest event with this payload."""
    found = "SELECT rowid FROM events WHERE payload = ? ORDER BY rowid DESC LIMIT 1"
    return f"UPDATE events SET payload = ? WHERE rowid = ({found})", (after, before)


@contextlib.contextmanager
def _reader(database: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        # What a damaged file holds as text need not be any.
        connection.text_factory = lambda raw: raw.decode(errors="replace")
        yield connection


def last_recorded(database: Path) -> dict[int, tuple[int, int]]:
    """Return generation and number of the newest record in the file, by rank."""
    newest: dict[int, tuple[int, int]] = {}
    with contextlib.suppress(*DAMAGE), _reader(database) as connection:
        for level in levels(connection):
            query = f"SELECT rank, generation, max(last_seq) FROM {table(level)} GROUP BY rank, generation"
            with contextlib.suppress(*DAMAGE):
                for rank, generation, seq in connection.execute(query):
                    if isinstance(rank, int) and isinstance(generation, int) and isinstance(seq, int):
                        newest[rank] = max(newest.get(rank, NOTHING), (generation, seq))
    return newest


def open_file(database: Path) -> sqlite3.Connection:
    """Open the file for the one who writes it; raises `sqlite3.Error`."""
    connection = sqlite3.connect(database)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(_SCHEMA)
    except DAMAGE:
        connection.close()
        raise
    return connection


def finish(connection: sqlite3.Connection) -> None:
    """Close the file for good."""
    # Leaving WAL mode takes run.db-wal and run.db-shm away; a reader that is still there keeps them.
    with contextlib.suppress(*DAMAGE):
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
