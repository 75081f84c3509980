"""The tables of a run's SQLite file: messages are stored as rows, and read as the history of the run.

Generations of ranks are separate, so that steps before and after a restart are not mixed.  The newest steps are in the
table `steps`, unchanged; older ones, of which only some are left, are in
`steps_1`, `steps_2` and so on, the oldest in the highest (see `ring`).  A file without those tables is read as well.
This module knows no socket.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ddptop.agent import wire
from ddptop.agent.observer.record.thinning import without_seen
from ddptop.agent.run.files.database import DAMAGE, Locked, is_locked

BATCH_S: Final = 1.0
"""Seconds between two transactions of the recorder."""
NOTHING: Final = (0, -1)
"""Generation and number of the newest record where there is none."""
_OBSERVER: Final = -1
_LOCK_S: Final = 5.0
"""Seconds that a reader waits for a file that another process holds, before it takes it for an empty one."""
_PIECE: Final = 500
"""Rows that are read at a time, in a millisecond or two."""
_LAST_ROW: Final = (1 << 63) - 1
_MOST_LEVELS: Final = 100
"""Levels are numbered with two digits."""
MOST_VERDICTS: Final = 10_000
"""Verdicts that are recorded, the newest."""
_TABLE: Final = re.compile(r"steps(?:_([1-9][0-9]?))?")

_STEPS: Final = """CREATE TABLE IF NOT EXISTS
    {table}(rank INTEGER, generation INTEGER, first_seq INTEGER, last_seq INTEGER, payload BLOB);
"""
_SCHEMA: Final = f"""
{_STEPS.format(table="steps")}
CREATE TABLE IF NOT EXISTS
    latest(kind TEXT, rank INTEGER, generation INTEGER, payload BLOB, PRIMARY KEY(kind, rank, generation));
CREATE TABLE IF NOT EXISTS events(at_ns INTEGER, payload BLOB);
CREATE TABLE IF NOT EXISTS verdicts(number INTEGER PRIMARY KEY, since INTEGER, until INTEGER, payload BLOB);
"""

INSERT_STEPS: Final = "INSERT INTO steps VALUES(?, ?, ?, ?, ?)"
INSERT_EVENT: Final = "INSERT INTO events VALUES(?, ?)"
_INSERT_LATEST: Final = "INSERT OR REPLACE INTO latest VALUES(?, ?, ?, ?)"

Row = tuple[str, tuple[Any, ...]]
"""A statement and its values."""


def table(level: int) -> str:
    """Return the name of the table for steps that were thinned `level` times."""
    return f"steps_{level}" if level else "steps"


def make_table(connection: sqlite3.Connection, level: int) -> None:
    """Make the table of a level, where it does not exist."""
    connection.execute(_STEPS.format(table=table(level)))


def levels(connection: sqlite3.Connection) -> list[int]:
    """Return the levels of steps in the file, that of the oldest steps first."""
    names = (str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'"))
    return sorted((int(found[1] or 0) for name in names if (found := _TABLE.fullmatch(name))), reverse=True)


def read_history(database: Path) -> Iterator[wire.Telemetry]:
    """Yield a recording: `Hello` and steps of the ranks, one generation after the other, then the events
    in order and the last `Beat` of each rank.

    Damage or absence of the file ends the iteration, after the messages that could be read.  Some of the older steps
    are omitted on purpose: a gap in their numbers does not mean that they were missed.
    """
    for generation in _generations(database):
        query = "SELECT payload FROM latest WHERE kind = 'hello' AND generation = ? ORDER BY rank"
        yield from _messages(_rows(database, query, generation))
        yield from filter(None, _walk(database, generation))
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
    """Yield the `Hello` of each rank, one generation after the other."""
    yield from _read(database, "SELECT payload FROM latest WHERE kind = 'hello' ORDER BY generation, rank")


def read_events(database: Path) -> Iterator[wire.Telemetry]:
    """Yield the events, in order."""
    yield from _read(database, "SELECT payload FROM events ORDER BY at_ns, rowid")


def newest_events(database: Path, most: int, *, or_locked: bool = False) -> list[wire.Event]:
    """Return the newest events, at most `most`, in order.

    Raises:
        Locked: another process holds the file; only with `or_locked`.
    """
    query = "SELECT payload FROM events ORDER BY at_ns DESC, rowid DESC LIMIT ?"
    found = _messages(_rows(database, query, most, or_locked=or_locked)[::-1])
    return [event for event in found if isinstance(event, wire.Event)]


def read_verdicts(database: Path, *, or_locked: bool = False) -> list[wire.Verdict]:
    """Return the recorded verdicts in order; none where the file has none.

    Raises:
        Locked: another process holds the file; only with `or_locked`.
    """
    found: list[wire.Verdict] = []
    for (payload,) in _rows(database, "SELECT payload FROM verdicts ORDER BY number", or_locked=or_locked):
        with contextlib.suppress(wire.Unreadable, TypeError):
            message = wire.read_telemetry(payload)
            if isinstance(message, wire.Verdicts):
                found += message.verdicts
    return found


def read_end(database: Path) -> Iterator[wire.Telemetry]:
    """Yield the last `Beat` of each rank, and of a run that is over its last state and what was wrong with it then."""
    yield from _read(database, "SELECT payload FROM latest WHERE kind = 'beat' ORDER BY rank")
    yield from _read(database, "SELECT payload FROM latest WHERE kind = 'run'")
    yield from _read(database, "SELECT payload FROM latest WHERE kind = 'verdicts'")


def read_inspections(database: Path) -> list[wire.Inspection]:
    """Return where the ranks stood when the last hang was told, by rank; none where there was no hang."""
    found: list[wire.Inspection] = []
    for (payload,) in _rows(database, "SELECT payload FROM latest WHERE kind = 'inspection' ORDER BY rank"):
        with contextlib.suppress(wire.Unreadable, TypeError):
            answer = wire.read_answer(payload)
            if isinstance(answer, wire.Reply) and answer.inspection is not None:
                found.append(answer.inspection)
    return found


def read_newest_steps(database: Path, most: int) -> Iterator[wire.Telemetry]:
    """Yield the newest messages with steps, at most `most`, oldest first."""
    rows: list[tuple[Any, ...]] = []
    with contextlib.suppress(*DAMAGE), _reader(database) as connection:
        # A transaction, because the writer may move rows from level to level meanwhile.
        connection.execute("BEGIN")
        for level in reversed(levels(connection)):
            if len(rows) >= most:
                break
            with contextlib.suppress(*DAMAGE):
                query = f"SELECT payload FROM {table(level)} ORDER BY rowid DESC LIMIT ?"
                rows.extend(connection.execute(query, (most - len(rows),)))
    yield from _messages(rows[::-1])


def read_last_steps(database: Path, generation: int, most: int) -> Iterator[wire.Telemetry]:
    """Yield the last messages with steps of a generation, at most `most`, oldest first; of a file of any size at once.

    Generations follow one another in each table, but for messages that came late.
    """
    rows: list[tuple[Any, ...]] = []
    with contextlib.suppress(*DAMAGE), _reader(database) as connection:
        connection.execute("BEGIN")
        for level in reversed(levels(connection)):
            if len(rows) >= most:
                break
            # A row number may be the largest that there is.
            with contextlib.suppress(*DAMAGE, ValueError, OverflowError):
                begin, end = (_end_of(connection, table(level), each) for each in (generation - 1, generation))
                query = (
                    f"SELECT payload FROM {table(level)} WHERE rowid >= ? AND rowid < ? AND generation = ? "
                    "ORDER BY rowid DESC LIMIT ?"
                )
                rows.extend(connection.execute(query, (begin, end, generation, most - len(rows))))
    yield from _messages(rows[::-1])


def _end_of(connection: sqlite3.Connection, source: str, generation: int) -> int:
    """Return the first row of a table that is of a later generation, found by halving; else one after the last."""
    first, last = connection.execute(f"SELECT min(rowid), max(rowid) FROM {source}").fetchone()
    if last is None:
        return 0
    low, high = first, last + 1
    while low < high:
        middle = (low + high) // 2
        query = f"SELECT rowid, generation FROM {source} WHERE rowid >= ? ORDER BY rowid LIMIT 1"
        ((rowid, of),) = connection.execute(query, (middle,))
        if isinstance(of, int) and of > generation:
            high = middle
        else:
            low = rowid + 1
    return int(low)


def read_steps(database: Path) -> Iterator[wire.Telemetry]:
    """Yield all remaining steps, in order; the file is not locked between pieces, even for a slow caller."""
    yield from filter(None, _walk(database))


def read_steps_since(
    database: Path, known: Mapping[tuple[int, int], int], row: int, every: int = 1
) -> Iterator[wire.Steps | None]:
    """Yield the recorded steps that are not known yet, in order for each rank.

    While another process holds the file, it yields None, without waiting, and tries again when it is asked next.

    Args:
        database: the file.
        known: by rank and generation, the number of the newest record that is known.
        row: row of `steps` up to which all records are known, so that it is not even looked at; 0 where there is none.
        every: of each rank only the first record of so many is wanted.
    """
    done: dict[int, int] = {}
    while True:
        try:
            first = _rows(database, "SELECT min(rowid), max(rowid) FROM steps", or_locked=True)
            break
        except Locked:
            yield None
    # Where newer rows have been thinned meanwhile, or the table began anew, each row is looked at.
    if row > 0 and first and first[0][0] is not None and first[0][0] <= row + 1 <= first[0][1] + 1:
        done = dict.fromkeys(range(1, _MOST_LEVELS), _LAST_ROW) | {0: row}
    yield from _walk(database, None, done, dict(known), every, or_locked=True)


def _walk(
    database: Path,
    generation: int | None = None,
    done: dict[int, int] | None = None,
    seen: dict[tuple[int, int], int] | None = None,
    every: int = 1,
    *,
    or_locked: bool = False,
) -> Iterator[wire.Steps | None]:
    """Yield the steps level by level, each once, although the writer may thin them between two pieces.

    With `or_locked` it yields None while another process holds the file; otherwise such a file ends it.
    `done` is by level the last row read; `seen`, by rank and generation, the number of the last record yielded: its row
    may have moved to another level since.
    """
    done = {} if done is None else done
    seen = {} if seen is None else seen
    while True:
        try:
            rows = _piece(database, generation, done, or_locked=or_locked)
        except Locked:
            yield None
            continue
        if not rows:
            return
        for rank, of, first, last, payload in rows:
            known = seen.get((rank, of), -1)
            if last < known + every:
                continue
            for message in _messages([(payload,)]):
                if isinstance(message, wire.Steps):
                    seen[rank, of] = last
                    yield message if first > known else without_seen(message, known)


def _piece(
    database: Path, generation: int | None, done: dict[int, int], *, or_locked: bool = False
) -> list[tuple[Any, ...]]:
    """Return the next rows of the highest level that has any, so that rows that moved up meanwhile come first."""
    rows: list[tuple[Any, ...]] = []
    with _tolerant(or_locked=or_locked), _reader(database, 0.0 if or_locked else _LOCK_S) as connection:
        for level in levels(connection):
            last = done.get(level, 0)
            with _tolerant(or_locked=or_locked):
                for rowid, *values in connection.execute(
                    f"SELECT rowid, rank, generation, first_seq, last_seq, payload FROM {table(level)} "
                    "WHERE rowid > ? AND (? IS NULL OR generation = ?) ORDER BY rowid LIMIT ?",
                    (last, generation, generation, _PIECE),
                ):
                    last = rowid
                    if all(isinstance(value, int) for value in values[:4]):
                        rows.append(tuple(values))
            done[level] = last
            if rows:
                break
    return rows


def _read(database: Path, query: str) -> Iterator[wire.Telemetry]:
    yield from _messages(_rows(database, query))


def _messages(rows: list[tuple[Any, ...]]) -> Iterator[wire.Telemetry]:
    for payload, *_ in rows:
        with contextlib.suppress(wire.Unreadable, TypeError):
            yield wire.read_telemetry(payload)


def _rows(database: Path, query: str, *values: int, or_locked: bool = False) -> list[tuple[Any, ...]]:
    """Return the rows of a query; of a damaged file those before the damage, of an absent one none."""
    rows: list[tuple[Any, ...]] = []
    with _tolerant(or_locked=or_locked), _reader(database, 0.0 if or_locked else _LOCK_S) as connection:
        rows.extend(connection.execute(query, values))
    return rows


@contextlib.contextmanager
def _tolerant(*, or_locked: bool) -> Iterator[None]:
    """Suppress what an unusable file raises; with `or_locked`, one that another process holds raises `Locked`."""
    try:
        yield
    except DAMAGE as error:
        if or_locked and is_locked(error):
            raise Locked(str(error)) from error


def row(message: wire.Telemetry | wire.NumberedSteps, payload: bytes) -> Row:
    """Return the statement that stores a message; raises `ValueError` for one that is not recorded."""
    if type(message) is wire.Beat:
        # The most frequent one; a pattern below asks the metaclass of each class before the one that matches.
        return _INSERT_LATEST, ("beat", message.rank, 0, payload)
    match message:
        case wire.Steps() | wire.NumberedSteps():
            seqs = [step.seq for step in message.steps]
            return INSERT_STEPS, (message.rank, message.generation, min(seqs), max(seqs), payload)
        case wire.Event():
            return INSERT_EVENT, (message.at_ns, payload)
        case wire.Hello():
            latest = "hello", message.rank, message.generation
        case wire.RunState():
            latest = "run", _OBSERVER, 0
        case wire.Verdicts():
            latest = "verdicts", _OBSERVER, 0
        case wire.Summary() | wire.Checksums():
            raise ValueError(f"{type(message).__name__} is not recorded")
    return _INSERT_LATEST, (*latest, payload)


def verdict_rows(verdict: wire.Verdict) -> list[Row]:
    """Return the statements that store a verdict in place of what its number had, and remove what is too old."""
    payload = wire.encode(wire.Verdicts(verdict.since_at_ns, (verdict,)))
    values = verdict.number, verdict.since_at_ns, verdict.until_at_ns, payload
    return [
        ("INSERT OR REPLACE INTO verdicts VALUES(?, ?, ?, ?)", values),
        ("DELETE FROM verdicts WHERE number <= ?", (verdict.number - MOST_VERDICTS,)),
    ]


def inspection_rows(inspections: Sequence[wire.Inspection]) -> list[Row]:
    """Return the statements that store where ranks stand, in place of all that was stored of an earlier moment."""
    return [
        ("DELETE FROM latest WHERE kind = ?", ("inspection",)),
        *(
            (_INSERT_LATEST, ("inspection", each.rank, 0, wire.encode(wire.Reply(0, True, inspection=each))))
            for each in inspections
        ),
    ]


def rewritten(before: bytes, after: bytes) -> Row:
    """Return the statement that replaces the payload `before` of the newest event that has it."""
    found = "SELECT rowid FROM events WHERE payload = ? ORDER BY rowid DESC LIMIT 1"
    return f"UPDATE events SET payload = ? WHERE rowid = ({found})", (after, before)


@contextlib.contextmanager
def _reader(database: Path, lock_s: float = _LOCK_S) -> Iterator[sqlite3.Connection]:
    uri = f"{database.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=lock_s)) as connection:
        # Texts of a damaged file may be invalid.
        connection.text_factory = lambda raw: raw.decode(errors="replace")
        yield connection


def last_recorded(database: Path, *, or_locked: bool = False) -> dict[int, tuple[int, int]]:
    """Return generation and number of the newest record in the file, by rank.

    Raises:
        Locked: another process holds the file; only with `or_locked`.
    """
    newest: dict[int, tuple[int, int]] = {}
    with _tolerant(or_locked=or_locked), _reader(database, 0.0 if or_locked else _LOCK_S) as connection:
        for level in levels(connection):
            query = f"SELECT rank, generation, max(last_seq) FROM {table(level)} GROUP BY rank, generation"
            with _tolerant(or_locked=or_locked):
                for rank, generation, seq in connection.execute(query):
                    if isinstance(rank, int) and isinstance(generation, int) and isinstance(seq, int):
                        newest[rank] = max(newest.get(rank, NOTHING), (generation, seq))
    return newest


def open_file(database: Path) -> sqlite3.Connection:
    """Open the file for its writer; raises `sqlite3.Error`."""
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
    """Close the file after the last write."""
    # Leaving WAL mode removes run.db-wal and run.db-shm, unless a reader still uses them.
    with contextlib.suppress(*DAMAGE):
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
