"""The tables of a run's SQLite file: messages are stored as rows, and read as the history of the run.

Generations of ranks are separate, so that steps before and after a restart are not mixed.  The newest steps are in the
table `steps`, unchanged; of older ones there are the numbers (see `history.stored`), and the last message of each rank
and generation.  This module knows no socket.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ddptop.agent import wire
from ddptop.agent.run import states
from ddptop.agent.run.files.database import DAMAGE, Locked, is_locked
from ddptop.agent.run.files.private import is_plain
from ddptop.agent.run.records import Run
from ddptop.agent.wire.frames import ENDED

BATCH_S: Final = 1.0
"""Seconds between two transactions of the recorder."""
NOTHING: Final = (0, -1)
"""Generation and number of the newest record where there is none."""
_OBSERVER: Final = -1
_LOCK_S: Final = 5.0
"""Seconds that a reader waits for a file that another process holds, before it takes it for an empty one."""
_FURTHEST_ROW: Final = 1 << 40
_AT_ONCE: Final = 256
"""Messages with steps that are held at a time where all are read."""
_MOST_EVENTS: Final = 100_000
"""Newest events that are read of one run."""
MOST_VERDICTS: Final = 10_000
"""Verdicts that are recorded, the newest."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS
    steps(rank INTEGER, generation INTEGER, first_seq INTEGER, last_seq INTEGER, payload BLOB);
CREATE TABLE IF NOT EXISTS
    latest(kind TEXT, rank INTEGER, generation INTEGER, payload BLOB, PRIMARY KEY(kind, rank, generation));
CREATE TABLE IF NOT EXISTS events(at_ns INTEGER, payload BLOB);
CREATE TABLE IF NOT EXISTS verdicts(number INTEGER PRIMARY KEY, since INTEGER, until INTEGER, payload BLOB);
CREATE TABLE IF NOT EXISTS frames(rank INTEGER PRIMARY KEY, payload BLOB);
"""

INSERT_STEPS: Final = "INSERT INTO steps VALUES(?, ?, ?, ?, ?)"
KEEP_LAST: Final = """INSERT OR REPLACE INTO latest SELECT 'steps', rank, generation, payload FROM steps
    WHERE rowid IN (SELECT max(rowid) FROM steps WHERE rowid <= ? GROUP BY rank, generation)"""
"""Keeps the last message of each rank and generation among those that are removed next."""
INSERT_EVENT: Final = "INSERT INTO events VALUES(?, ?)"
_INSERT_LATEST: Final = "INSERT OR REPLACE INTO latest VALUES(?, ?, ?, ?)"
INSERT_FRAME: Final = "INSERT OR REPLACE INTO frames VALUES(?, ?)"

Row = tuple[str, tuple[Any, ...]]
"""A statement and its values."""


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


def events_of(database: Path, run: Run) -> list[wire.Event]:
    """Return the recorded events of a run, oldest first, and its end by its record; see `with_end`."""
    return [*unreadable(database), *with_end(newest_events(database, _MOST_EVENTS), run)]


def with_end(events: Iterable[wire.Event], run: Run) -> Iterator[wire.Event]:
    """Yield the events of a run, and its end by its record: on a full disk there was room for that alone."""
    is_told = run.ended_at_ns is None or run.state not in ENDED
    for event in events:
        is_told = is_told or event.text.startswith(f"run {run.state}")
        yield event
    if not is_told and run.ended_at_ns is not None:
        text, level = states.describe_end(run.state, run.cause)
        yield wire.Event(run.ended_at_ns, text, run.cause_rank, level)


def unreadable(database: Path) -> list[wire.Event]:
    """Return an event that says why a recording cannot be read; none where it can be read, or there is none."""
    try:
        if os.path.lexists(database):
            with reader(database) as connection:
                connection.execute("SELECT count(*) FROM sqlite_master")
    except DAMAGE as error:
        if not is_locked(error):
            text = f"the recording cannot be read ({database}: {error}): what happened before is not shown"
            return [wire.Event(time.time_ns(), text, None, "warning")]
    return []


def without_frames(database: Path) -> list[wire.Event]:
    """Return an event that says of a recording that it has no last frames; none where it has, or cannot be read."""
    if not os.path.lexists(database) or unreadable(database) or read_frames(database)[0] is not None:
        return []
    text = "the recording is of an older ddptop: how the ranks were at the end is not in it; `ddptop report` has more"
    return [wire.Event(time.time_ns(), text, None, "warning")]


def read_verdicts(database: Path, *, or_locked: bool = False) -> list[wire.Verdict]:
    """Return the recorded verdicts in order; none where the file has none.

    Raises:
        Locked: another process holds the file; only with `or_locked`.
    """
    found: list[wire.Verdict] = []
    for (payload,) in _rows(database, "SELECT payload FROM verdicts ORDER BY number", or_locked=or_locked):
        with contextlib.suppress(wire.Unreadable, TypeError):
            found.append(wire.read_verdict(payload))
    return found


def read_beats(database: Path) -> Iterator[wire.Telemetry]:
    """Yield the last `Beat` of each rank, and the last `Sampled` where it had no agent."""
    yield from _read(database, "SELECT payload FROM latest WHERE kind IN ('beat', 'sampled') ORDER BY kind, rank")


def read_frames(database: Path, *, or_locked: bool = False) -> tuple[wire.RunFrame | None, dict[int, wire.RankFrame]]:
    """Return the frame of the run and those of its ranks that were recorded last, as far as they can be read.

    Those of another protocol are not read.

    Raises:
        Locked: another process holds the file; only with `or_locked`.
    """
    run: wire.RunFrame | None = None
    ranks: dict[int, wire.RankFrame] = {}
    same = "(SELECT user_version FROM pragma_user_version) = ?"
    query = f"SELECT payload FROM frames WHERE {same} ORDER BY rank"
    for (payload,) in _rows(database, query, wire.PROTOCOL, or_locked=or_locked):
        with contextlib.suppress(wire.Unreadable, TypeError):
            frame = wire.read_frame(payload)
            if isinstance(frame, wire.RunFrame):
                run = frame
            elif isinstance(frame, wire.RankFrame):
                ranks[frame.rank] = frame
    return run, ranks


def read_inspections(database: Path) -> list[wire.Inspection]:
    """Return where the ranks stood when the last hang was told, by rank; none where there was no hang."""
    found: list[wire.Inspection] = []
    for (payload,) in _rows(database, "SELECT payload FROM latest WHERE kind = 'inspection' ORDER BY rank"):
        with contextlib.suppress(wire.Unreadable, TypeError):
            answer = wire.read_answer(payload)
            if isinstance(answer, wire.Reply) and answer.inspection is not None:
                found.append(answer.inspection)
    return found


def read_steps(database: Path, most: int = -1) -> Iterator[wire.Telemetry]:
    """Yield the newest messages with steps, at most `most` where that is not negative, oldest first."""
    yield from _messages(_rows(database, "SELECT payload FROM steps ORDER BY rowid DESC LIMIT ?", most)[::-1])


def stream_steps(database: Path, problems: list[str]) -> Iterator[wire.Steps]:
    """Yield all messages with steps, oldest first, of a file of any size, some at a time.

    What is damaged is passed over, with a line in `problems`. The writer of a live run is not held up: no transaction
    lasts longer than some rows.
    """
    done, single, skipped, reason = -1, 0, 0, ""
    try:
        with reader(database) as connection:
            # Else SQLite reads nothing of a file that is shorter than it was; nothing is written here.
            connection.execute("PRAGMA writable_schema = ON")
            try:
                (last,) = connection.execute("SELECT max(rowid) FROM steps").fetchone()
            except DAMAGE as problem:
                # Where the end of the file is missing, its beginning can be read.
                if is_locked(problem):
                    raise
                last, reason = _FURTHEST_ROW, str(problem)
            while last is not None and done < last:
                query = "SELECT rowid, payload FROM steps WHERE rowid > ? AND rowid <= ? ORDER BY rowid LIMIT ?"
                try:
                    rows = connection.execute(query, (done, last, 1 if single else _AT_ONCE)).fetchall()
                    # A damaged tree may lead back.
                    is_astray = bool(rows) and rows[0][0] <= done
                except DAMAGE as problem:
                    if is_locked(problem):
                        raise
                    is_astray, reason = True, str(problem)
                if is_astray:
                    # Rows before the damaged page are read one by one, those behind it are found by larger numbers.
                    skipped = (2 * skipped or 1) if single else 0
                    done, single = done + skipped, _AT_ONCE
                    continue
                skipped, single = 0, max(0, single - 1)
                if not rows:
                    break
                for row, payload in rows:
                    done = row
                    try:
                        message = wire.read_telemetry(payload)
                    except (wire.Unreadable, TypeError) as problem:
                        reason = str(problem) or "a message is damaged"
                        continue
                    if isinstance(message, wire.Steps):
                        yield message
    except DAMAGE as problem:
        reason = str(problem)
    if reason:
        problems.append(f"a part of the record cannot be read, and is left out: {reason}")


def read_last_steps(database: Path, generation: int, most: int) -> Iterator[wire.Telemetry]:
    """Yield the last messages with steps of a generation, at most `most`, oldest first; of a file of any size at once.

    Generations follow one another, but for messages that came late.
    """
    kept = "SELECT payload FROM latest WHERE kind = 'steps' AND generation = ? LIMIT ?"
    rows = _rows(database, kept, generation, most)
    with contextlib.suppress(*DAMAGE), reader(database) as connection:
        # A transaction, because the writer may remove rows meanwhile.
        connection.execute("BEGIN")
        # A row number may be the largest that there is.
        with contextlib.suppress(ValueError, OverflowError):
            begin, end = (_end_of(connection, each) for each in (generation - 1, generation))
            query = (
                "SELECT payload FROM steps WHERE rowid >= ? AND rowid < ? AND generation = ? "
                "ORDER BY rowid DESC LIMIT ?"
            )
            newest = list(connection.execute(query, (begin, end, generation, most)))
            rows = [*rows[: max(0, most - len(newest))], *newest[::-1]]
    yield from _messages(rows)


def _end_of(connection: sqlite3.Connection, generation: int) -> int:
    """Return the first row of the steps that is of a later generation, found by halving; else one after the last."""
    first, last = connection.execute("SELECT min(rowid), max(rowid) FROM steps").fetchone()
    if last is None:
        return 0
    low, high = first, last + 1
    while low < high:
        middle = (low + high) // 2
        query = "SELECT rowid, generation FROM steps WHERE rowid >= ? ORDER BY rowid LIMIT 1"
        ((rowid, of),) = connection.execute(query, (middle,))
        if isinstance(of, int) and of > generation:
            high = middle
        else:
            low = rowid + 1
    return int(low)


def _read(database: Path, query: str) -> Iterator[wire.Telemetry]:
    yield from _messages(_rows(database, query))


def _messages(rows: list[tuple[Any, ...]]) -> Iterator[wire.Telemetry]:
    for payload, *_ in rows:
        with contextlib.suppress(wire.Unreadable, TypeError):
            yield wire.read_telemetry(payload)


def _rows(database: Path, query: str, *values: int, or_locked: bool = False) -> list[tuple[Any, ...]]:
    """Return the rows of a query; of a damaged file those before the damage, of an absent one none."""
    rows: list[tuple[Any, ...]] = []
    with _tolerant(or_locked=or_locked), reader(database, 0.0 if or_locked else _LOCK_S) as connection:
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
        case wire.Sampled():
            latest = "sampled", message.rank, 0
        case wire.Summary() | wire.Checksums():
            raise ValueError(f"{type(message).__name__} is not recorded")
    return _INSERT_LATEST, (*latest, payload)


def verdict_rows(verdict: wire.Verdict) -> list[Row]:
    """Return the statements that store a verdict in place of what its number had, and remove what is too old."""
    values = verdict.number, verdict.since_at_ns, verdict.until_at_ns, wire.encode(verdict)
    return [
        ("INSERT OR REPLACE INTO verdicts VALUES(?, ?, ?, ?)", values),
        ("DELETE FROM verdicts WHERE number <= ?", (verdict.number - MOST_VERDICTS,)),
    ]


def frame_rows(run: bytes, ranks: Sequence[bytes]) -> list[Row]:
    """Return the statements that store the frames of the run and of all its ranks in place of those before."""
    return [
        ("DELETE FROM frames WHERE rank >= ?", (len(ranks),)),
        (INSERT_FRAME, (_OBSERVER, run)),
        *((INSERT_FRAME, each) for each in enumerate(ranks)),
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
def reader(database: Path, lock_s: float = _LOCK_S) -> Iterator[sqlite3.Connection]:
    """Open the file for reading; raises one of `DAMAGE` where it is unusable."""
    if not is_plain(database):
        raise sqlite3.OperationalError("a folder, or a link")
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
    query = "SELECT rank, generation, max(last_seq) FROM steps GROUP BY rank, generation"
    for rank, generation, seq in _rows(database, query, or_locked=or_locked):
        if isinstance(rank, int) and isinstance(generation, int) and isinstance(seq, int):
            newest[rank] = max(newest.get(rank, NOTHING), (generation, seq))
    for message in _messages(_rows(database, "SELECT payload FROM latest WHERE kind = 'steps'", or_locked=or_locked)):
        if isinstance(message, wire.Steps) and message.steps:
            last = message.generation, max(step.seq for step in message.steps)
            newest[message.rank] = max(newest.get(message.rank, NOTHING), last)
    return newest


def open_file(database: Path) -> sqlite3.Connection:
    """Open the file for its writer; raises `sqlite3.Error`."""
    if os.path.lexists(database) and not is_plain(database):
        raise sqlite3.OperationalError(f"{database}: a folder, or a link")
    connection = sqlite3.connect(database)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA user_version = {wire.PROTOCOL}")
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
