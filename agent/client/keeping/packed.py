"""An ended run as the bytes of one file, and as the folder of an ended run again, which all of the client reads.

A file holds the record of the run and of its ranks, events, verdicts, the last frames, the numbers of all steps and, as
far as there is room, its newest whole steps and the ends of its logs. Times are rounded to one part in 2,048. A file
may come from anybody: it is unpacked up to a bound, and decoded by a type with bounds, no name in it becomes a path,
and of its processes and command lines nothing is believed. Secrets of the run are masked.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from ddptop.agent.client.runs import Record, Run
from ddptop.agent.record import recording
from ddptop.agent.record.history.packing import INDEX
from ddptop.agent.record.history.stored import Writer
from ddptop.agent.run import records
from ddptop.agent.run.files import decoding, private
from ddptop.agent.run.files.database import DAMAGE
from ddptop.agent.run.files.masking import Mask
from ddptop.agent.run.records import Member
from ddptop.agent.run.rundir import RunDir, RunDirError, check_name
from ddptop.agent.text import clean_line
from ddptop.agent.wire.frames import ENDED
from ddptop.agent.wire.incoming import cleaned
from ddptop.agent.wire.message import MAX_MESSAGE_BYTES, MOST_RANKS
from ddptop.agent.wire.steps.numbers import CUSTOM

_BEGINNING: Final = b"ddptop run "
MAGIC: Final = _BEGINNING + b"1\n"
"""The first line, with the number of the form of the file."""
MOST_BYTES: Final = 256 << 20
"""Bytes of a file at most."""
MOST_UNPACKED: Final = 512 << 20
"""The same, once it is unpacked."""
A_STEP: Final = 36
"""Bytes of a step and rank up to which whole steps are packed, too."""
LEAST_WHOLE: Final = 8 << 10
"""Bytes of whole steps that are packed in any case."""
LOG_TAIL: Final = 4096
"""Last bytes of each log."""
_MOST_LOGS: Final = 64
_MOST_ROWS: Final = 4 * MOST_RANKS
"""Rows of a table at most."""
_EXACT: Final = frozenset({"", "loss", "learning_rate", "memory", "mfu", "number"})
"""Numbers that are not rounded, as those of the script."""
_BITS: Final = {"step": 13, "time": 15, "memory": 15}
"""Last bits of a single that are rounded away, by kind: of a step one part in 2,048, of a color one in 512."""

_Payload = Annotated[bytes, Meta(max_length=16 * MAX_MESSAGE_BYTES)]
_Whole = Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)]
_Moment = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Number = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Word = Annotated[str, Meta(max_length=200)]
_Row = TypeVar("_Row")
_Table = Annotated[list[_Row], Meta(max_length=_MOST_ROWS)]
_Bucket = tuple[_Word, _Word, _Whole, _Whole, _Whole, _Whole, _Payload]
_Steps = tuple[_Whole, _Whole, _Moment, _Moment, _Payload]


class _Content(msgspec.Struct):
    """All that a file holds; its tables are rows as `_QUERIES` asks for them."""

    record: Annotated[bytes, Meta(max_length=private.LARGEST_RECORD)]
    """JSON."""
    ranks: Annotated[bytes, Meta(max_length=64 << 20)]
    """JSON: a list."""
    logs: Annotated[dict[_Word, Annotated[bytes, Meta(max_length=LOG_TAIL)]], Meta(max_length=_MOST_LOGS)]
    """The ends of logs by their names."""
    protocol: Annotated[int, Meta(ge=0, le=1 << 16)] = 0
    """Of the messages in the tables."""
    latest: _Table[tuple[_Word, _Number, _Number, _Payload]] = []
    events: _Table[tuple[_Number, _Payload]] = []
    verdicts: _Table[tuple[_Number, _Number, _Number | None, _Payload]] = []
    frames: _Table[tuple[_Number, _Payload]] = []
    progress: _Table[tuple[_Number, _Payload]] = []
    buckets: Annotated[list[_Bucket], Meta(max_length=1 << 20)] = []
    """Kind, number, piece, level, first, last, and column by column what the record has of it."""
    steps: Annotated[list[_Steps], Meta(max_length=1 << 20)] = []


_Members = Annotated[list[Member], Meta(max_length=MOST_RANKS)]
_QUERIES: Final = {
    "latest": "SELECT kind, rank, generation, payload FROM latest WHERE kind != 'steps'",
    "events": "SELECT at_ns, payload FROM events ORDER BY at_ns, rowid",
    "verdicts": "SELECT number, since, until, payload FROM verdicts",
    "frames": "SELECT rank, payload FROM frames",
    "progress": "SELECT form, payload FROM progress",
}
"""What is packed of each table."""
_ALL_BUCKETS: Final = (
    "SELECT kind, number, piece, level, first, last, payload FROM buckets WHERE kind IN ('step', 'time', 'memory') "
    "ORDER BY kind, piece, number"
)
_NEWEST: Final = "SELECT rank, generation, first_seq, last_seq, payload FROM steps ORDER BY rowid DESC"


class PackedError(RunDirError):
    """A file that is no packed run, or a run that cannot be packed: one line."""


# Packing


def pack(run: Run, name: str = "") -> bytes:
    """Return an ended run as the bytes of a file, under another `name` where one is given.

    Raises:
        PackedError: it has not ended, or is too large.
        RunDirError: it is gone, or has no readable record.
    """
    record = run.ended()
    if record is None:
        run.record()
        raise PackedError(f"run {run.name} has not ended; `ddptop kill {run.name}` ends it")
    directory, hide = run.directory, run.mask()
    ranks, outputs = directory.everyone(), dict[Path, int]()
    for rank in sorted(ranks):
        # The output of several ranks without an agent may go to one file: it is the first one's.
        outputs.setdefault(directory.output(rank), rank)
    shown = {"run": name or record.run, "run_id": record.run_id, "state": record.state}
    content = _Content(
        msgspec.json.encode(hide.texts(msgspec.to_builtins(record)) | shown),
        msgspec.json.encode(hide.texts(msgspec.to_builtins(list(ranks.values())))),
        {f"rank-{rank}.log": _tail(path, hide) for path, rank in islice(outputs.items(), _MOST_LOGS)},
    )
    with suppress(*DAMAGE), recording.reader(directory.database) as connection:
        connection.execute("BEGIN")
        (content.protocol,) = connection.execute("PRAGMA user_version").fetchone()
        for table, query in _QUERIES.items():
            # A table that an older recording lacks costs itself.
            with suppress(sqlite3.Error):
                setattr(content, table, [_masked(row, hide) for row in islice(connection.execute(query), _MOST_ROWS)])
        with suppress(sqlite3.Error):
            content.buckets = _shrunk(connection.execute(_ALL_BUCKETS))
        packed = zlib.compress(msgspec.msgpack.encode(content.buckets), 9)
        indexes = [payload for kind, number, *_, payload in content.buckets if (kind, number) == ("step", "")]
        count = sum(map(len, indexes)) // INDEX.itemsize
        content.steps = _newest_steps(connection, hide, max(LEAST_WHOLE, A_STEP * count - len(packed)))
    raw = msgspec.msgpack.encode(content)
    packed = MAGIC + zlib.compress(raw, 9)
    if len(packed) > MOST_BYTES or len(raw) > MOST_UNPACKED:
        raise PackedError(f"run {run.name}: too large to be packed ({len(packed) >> 20:,} MiB)")
    return packed


def _masked(row: Iterable[object], hide: Mask) -> list[object]:
    return [hide.content(each) if isinstance(each, bytes) else each for each in row]


def _tail(log: Path, hide: Mask) -> bytes:
    with suppress(OSError), private.open_plain(log) as file:
        # A secret at the cut has to be seen whole.
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 2 * LOG_TAIL))
        return hide.content(file.read(2 * LOG_TAIL))[-LOG_TAIL:]
    return b""


def _newest_steps(connection: sqlite3.Connection, hide: Mask, room: int) -> list[_Steps]:
    """Return the newest rows of whole steps that take so many bytes once they are packed."""
    packing, found, size = zlib.compressobj(9), list[_Steps](), 0
    for row in connection.execute(_NEWEST):
        size += len(packing.compress(row[4]) + packing.flush(zlib.Z_SYNC_FLUSH))
        if size > room:
            break
        found.append((*row[:4], hide.content(row[4])))
    return found[::-1]


def _shrunk(rows: Iterable[_Bucket]) -> list[_Bucket]:
    """Return buckets in an order and a form that pack well: column by column, and rounded."""
    found, of, order = list[_Bucket](), ("", 0), np.empty(0, np.intp)
    for kind, number, piece, level, first, last, payload in rows:
        if of != (kind, piece):
            of, order = (kind, piece), np.empty(0, np.intp)
        # What is damaged costs itself, and the index of a piece all of its numbers.
        with suppress(ValueError):
            if not number:
                # It comes before the numbers of its piece.
                index = np.frombuffer(payload, INDEX)
                order = np.lexsort((index["key"], index["rank"]))
                index = index[order]
                at = np.rint(np.where(np.isfinite(index["at"]), index["at"], 0.0) * 1e6).astype("<i8")
                columns = [index["rank"], np.diff(index["key"], prepend=0), np.diff(at, prepend=0), index["weight"]]
            else:
                cells = np.frombuffer(payload, "<u4").reshape(-1, len(order))[:, order].ravel()
                if number not in _EXACT and not number.startswith(CUSTOM):
                    half, kept = np.uint32(1 << (_BITS[kind] - 1)), np.uint32((1 << 32) - (1 << _BITS[kind]))
                    cells = np.where(np.isfinite(cells.view("<f4")), (cells + half) & kept, cells)
                columns = [cells]
            found.append((kind, number, piece, level, first, last, b"".join(map(_shuffled, columns))))
    return sorted(found)


def _shuffled(column: np.ndarray) -> bytes:
    """Return the first bytes of all items, then the second ones, and so on."""
    return bytes(np.ascontiguousarray(column).view(np.uint8).reshape(len(column), -1).T.tobytes())


# Unpacking


def unpack(packed: bytes, folder: Path, what: str) -> Run:
    """Make the folder of an ended run from the bytes of a file, in a folder of ours, and return the run.

    Args:
        packed: the bytes.
        folder: an empty one, which is the caller's to remove.
        what: names the file in an error.

    Raises:
        PackedError: it is no packed run, is damaged or of a newer form, or nothing can be written.
    """
    try:
        return _unpacked(packed, folder)
    except PackedError as problem:
        raise PackedError(f"{what}: {problem}") from None
    except (msgspec.MsgspecError, zlib.error, ValueError, TypeError, OverflowError, RecursionError) as problem:
        raise PackedError(f"{what}: damaged ({clean_line(str(problem), 120)})") from None
    except (sqlite3.Error, OSError) as problem:
        raise PackedError(f"{what}: cannot be unpacked ({clean_line(str(problem), 120)})") from None


def _unpacked(packed: bytes, folder: Path) -> Run:
    if not packed.startswith(_BEGINNING):
        raise PackedError("no packed run; `ddptop pack RUN FILE` makes one")
    if not packed.startswith(MAGIC):
        raise PackedError("packed by a newer ddptop; use that one")
    opening = zlib.decompressobj()
    raw = opening.decompress(memoryview(packed)[len(MAGIC) :], MOST_UNPACKED)
    if not opening.eof or opening.unused_data:
        raise PackedError("damaged (cut off, or larger than any packed run)")
    content = msgspec.msgpack.decode(raw, type=_Content)
    record = _harmless(records.decode(content.record, Record))
    # Before anything else of msgspec is given the type.
    decoding.of(Member)
    ranks = msgspec.json.decode(content.ranks, type=_Members)
    directory = RunDir(folder / record.run)
    for path in (directory.path, directory.path / "ranks", directory.logs):
        path.mkdir(mode=0o700)
    firsts = dict[str, int]()
    for each in ranks:
        member = cleaned(each)
        if member.rank < record.world:
            bare = _bare(member, directory.rank_log(firsts.setdefault(member.log or str(member.rank), member.rank)))
            private.write(directory.rank_record(member.rank), msgspec.json.encode(bare))
            if tail := content.logs.get(f"rank-{member.rank}.log"):
                private.write(directory.rank_log(member.rank), tail)
    _fill(directory.database, record.world, content)
    private.write(directory.path / "run.json", msgspec.json.encode(record))
    return Run(directory)


def _harmless(record: Record) -> Record:
    """Return a record of which nothing can be started or ended: its processes and commands are another machine's."""
    if record.state not in ENDED:
        raise PackedError("damaged (a run that has not ended)")
    try:
        check_name(record.run)
    except RunDirError:
        raise PackedError("damaged (no name of a run)") from None
    return replace(
        record, launched=False, command=(), observer=None, torchrun=None, starter=None, holder=None,
        local_world=None, marks={}, known=(),
    )  # fmt: skip


def _bare(member: Member, log: Path) -> Member:
    """Return a rank without a process, whose output is in a file of ours whatever file it names."""
    return replace(
        member, process=replace(member.process, pid=0, started=0.0), pub="", cmd="", log_begin=0,
        log=None if member.log is None else str(log),
    )  # fmt: skip


def _fill(database: Path, world: int, content: _Content) -> None:
    connection = recording.open_file(database)
    with closing(connection):
        Writer(connection, world)
        with connection:
            connection.execute(f"PRAGMA user_version = {content.protocol:d}")
            for table in _QUERIES:
                for row in getattr(content, table):
                    marks = ", ".join("?" * len(row))
                    connection.execute(f"INSERT OR REPLACE INTO {table} VALUES({marks})", row)
            grown = (_grown(*each) for each in content.buckets if each[0] in _BITS)
            connection.executemany("INSERT OR REPLACE INTO buckets VALUES(?, ?, ?, ?, ?, ?, ?)", grown)
            connection.executemany(recording.INSERT_STEPS, content.steps)
        recording.finish(connection)


def _grown(
    kind: str, number: str, piece: int, level: int, first: int, last: int, payload: bytes
) -> tuple[str, str, int, int, int, int, bytes]:
    """Return a row as it was, but for what was rounded."""
    if number:
        return kind, number, piece, level, first, last, _restored(payload, "<f4").tobytes()
    count = len(payload) // INDEX.itemsize
    index, begin = np.empty(count, INDEX), 0
    for name, form in (("rank", "<u4"), ("key", "<i8"), ("at", "<i8"), ("weight", "<f4")):
        end = begin + count * np.dtype(form).itemsize
        column, begin = _restored(payload[begin:end], form), end
        index[name] = np.cumsum(column) if form == "<i8" else column
    index["at"] /= 1e6
    return kind, number, piece, level, first, last, index.tobytes()


def _restored(column: bytes, form: str) -> np.ndarray:
    size = np.dtype(form).itemsize
    return np.ascontiguousarray(np.frombuffer(column, np.uint8).reshape(size, -1).T).view(form).ravel()
