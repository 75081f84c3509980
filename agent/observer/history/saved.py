"""The history in the run's SQLite file: a table of compressed arrays, by number and level.

So a takeover and the run after its end have the history at once, and need not read millions of records. Once a minute
what has changed is written, and the rest at the end. What was recorded after the last writing is read from the
recorded steps; where the table is missing or damaged, all of it. A file that another process holds is read later.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ddptop.agent import wire
from ddptop.agent.observer.history.by_step import MOST_NAMES
from ddptop.agent.observer.history.by_time import BLOCK
from ddptop.agent.observer.history.kept import Kept
from ddptop.agent.observer.history.numbers import RECORDED, WIDTHS_S
from ddptop.agent.observer.history.packing import Damaged, packed, unpacked
from ddptop.agent.observer.history.series import Buckets, Course, Series
from ddptop.agent.observer.record import recording
from ddptop.agent.observer.record.recording import Row
from ddptop.agent.run.files.database import DAMAGE, Locked, is_locked
from ddptop.agent.wire.incoming import clean_name

SAVE_S: Final = 60.0
"""Seconds between two writings."""
_REST: Final = 200
"""So many times as long as the last writing took is waited for the next one."""
_LONGEST_S: Final = 600.0
_FORM: Final = 1
"""Number of the form of the table; another one is not read."""
_STATE: Final = "state"
_TABLE: Final = """CREATE TABLE IF NOT EXISTS
    series(key TEXT PRIMARY KEY, position INTEGER, written INTEGER, payload BLOB)"""
_PUT: Final = "INSERT OR REPLACE INTO series VALUES(?, NULL, NULL, ?)"
# What had been recorded when the state before was written had been taken in when this one was made: messages come to
# the history no later than to the file.
_PUT_STATE: Final = f"""INSERT OR REPLACE INTO series VALUES('{_STATE}',
    coalesce((SELECT written FROM series WHERE key = '{_STATE}'), 0), coalesce((SELECT max(rowid) FROM steps), 0), ?)"""
_CLEAR: Final = "DELETE FROM series"
_MOST_LEVELS: Final = 64
_MOST_STEPS: Final = 1 << 53
_COURSES: Final = 4
"""Numbers of which the buckets stay in memory once they were read from the file of an ended run."""
_RINGS: Final = ("steps", "memory")


class _Course(msgspec.Struct, array_like=True, gc=False):
    """One course of the table: the recorded numbers, or a value of the script's."""

    levels: int
    first: dict[int, int]
    last: dict[int, int]


class _State(msgspec.Struct, array_like=True, gc=False):
    """All but the arrays."""

    form: int
    world: int
    capacity: int
    columns: int
    generation: int
    before: int
    names: list[str]
    """Values given by the script, in their order."""
    refused: int
    courses: dict[str, _Course]
    seqs: dict[int, int]
    recorded: tuple[str, ...] = RECORDED
    """The columns of the course named ""."""
    whole: bool = False
    """True where nothing came after it: the run has ended."""
    timed: bool = True
    """False where there was no room for the numbers over time."""


_state_decoder: msgspec.msgpack.Decoder[_State] = msgspec.msgpack.Decoder(_State)


class Snapshot(NamedTuple):
    """What is to be written: arrays that nobody changes any more."""

    state: _State
    levels: Mapping[str, tuple[int, Buckets]]
    """By the beginning of their keys: how many numbers they have, and the buckets."""
    blocks: Mapping[str, tuple[npt.NDArray[Any], ...]]
    """By key, arrays of the numbers over time."""


class Saving:
    """Writes a history into the run's file. `snapshot` is for the thread that feeds it, the rest for the writer's."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._saved: dict[str, int] = {}
        """By beginning of a key, the serial number of the buckets that were handed out last."""
        self._sizes: dict[str, int] = {}
        """Bytes in the file, by key."""
        self._anew = True
        """All is to be written: nothing was yet, or a writing has failed."""
        self._timed = True
        self.period_s = SAVE_S
        """Seconds until the next snapshot: more where there is much to write."""
        self._hopeless = False
        """There is no room for it."""

    def snapshot(self, *, whole: bool = False) -> Snapshot | None:
        """Return what has changed since the last one, `whole` where nothing will come after it.

        None while the history is being read from the file: what is saved there is better; and where it has no room.
        """
        kept = self._kept
        if not kept.complete or self._hopeless:
            return None
        anew, self._anew = self._anew, False
        levels, courses = {}, {}
        for name, (course, first, last) in kept.by_step.saved.items():
            courses[name] = _Course(len(course.levels), dict(first), dict(last))
            for number, level in enumerate(course.levels):
                key = f"step/{number}/{name}"
                if anew or self._saved.get(key) != level.serial:
                    self._saved[key] = level.serial
                    levels[key] = level.stats.shape[2], level
        blocks: dict[str, tuple[npt.NDArray[Any], ...]] = {}
        for ring_name, ring in zip(_RINGS, kept.by_time.rings, strict=True):
            for number, narrow in enumerate(ring.levels):
                blocks |= {
                    f"time/{ring_name}/{number}/{block}": arrays
                    for block, arrays in narrow.take_changed(whole=anew).items()
                }
                blocks[f"time/{ring_name}/{number}/open"] = tuple(each.copy() for each in narrow.open)
        state = _State(
            _FORM, kept.world, kept.by_step.capacity, kept.columns, kept.generation, kept.by_step.before,
            list(kept.names), kept.refused, courses, dict(kept.seqs), whole=whole,
        )  # fmt: skip
        return Snapshot(state, levels, blocks)

    def rows(self, snapshot: Snapshot, room: int) -> list[Row]:
        """Return the statements that write a snapshot, in one transaction, into at most so many bytes.

        Where there is too little room for all of it, that over time is left out, and then the rest as well.
        """
        began = time.thread_time()
        new: dict[str, bytes] = {}
        for prefix, level in snapshot.levels.items():
            new |= _packed_level(prefix, *level)
        if self._timed:
            new |= {key: packed(*arrays) for key, arrays in snapshot.blocks.items()}
        self._sizes |= {key: len(payload) for key, payload in new.items()}
        self.period_s = min(_LONGEST_S, max(SAVE_S, _REST * (time.thread_time() - began)))
        cleared: list[Row] = []
        if self._timed and sum(self._sizes.values()) > room:
            self._timed = False
            cleared = [("DELETE FROM series WHERE key LIKE 'time/%'", ())]
            new = {key: payload for key, payload in new.items() if not key.startswith("time/")}
            self._sizes = {key: size for key, size in self._sizes.items() if not key.startswith("time/")}
        if sum(self._sizes.values()) > room:
            # It is made from the recorded steps where somebody needs it.
            self._hopeless = True
            return [(_TABLE, ()), (_CLEAR, ())]
        snapshot.state.timed = self._timed
        rows: list[Row] = [(_TABLE, ()), *cleared]
        rows += [(_PUT, (key, payload)) for key, payload in new.items()]
        return [*rows, (_PUT_STATE, (msgspec.msgpack.encode(snapshot.state),))]

    def fail(self) -> None:
        """Take note that a snapshot was not written: the next one has all of it."""
        self._anew = True


def _packed_level(prefix: str, columns: int, level: Buckets) -> Iterator[tuple[str, bytes]]:
    # Numbers of a rank that follow each other differ little, and what differs little takes little.
    order = np.argsort(level.ranks, kind="stable")
    ranks, steps = level.ranks[order], level.steps[order]
    at_ms = np.rint(level.at[order] * 1e3).astype(np.int64)
    yield f"{prefix}/index", packed(ranks.astype(np.uint32), np.diff(steps, prepend=0), np.diff(at_ms, prepend=0))
    for column in range(columns):
        stats = np.ascontiguousarray(level.stats[order, :, column].T)
        bits = stats.view(np.uint32)
        # Of a single step, least and greatest are the mean itself.
        bits[:2] ^= bits[2]
        yield f"{prefix}/{column}", packed(stats)


# Reading


class _File:
    """The table, read key by key."""

    def __init__(self, database: Path) -> None:
        self._uri = f"{database.absolute().as_uri()}?mode=ro"

    def rows(self, *keys: str) -> dict[str, tuple[Any, ...]]:
        """Return position and payload of some keys.

        Raises:
            Damaged: one is missing, or cannot be read.
            Locked: another process holds the file.
        """
        found = {}
        with self._connected() as connection:
            # One transaction: the writer may go on meanwhile.
            connection.execute("BEGIN")
            for key in keys:
                row = connection.execute("SELECT position, payload FROM series WHERE key = ?", (key,)).fetchone()
                if row is None:
                    raise Damaged(f"{key} is missing")
                found[key] = row
        return found

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            # Whoever reads tries again later, and does not wait in here.
            with contextlib.closing(sqlite3.connect(self._uri, uri=True, timeout=0.0)) as connection:
                yield connection
        except DAMAGE as error:
            raise (Locked if is_locked(error) else Damaged)(str(error)) from error

    def state(self) -> tuple[_State, int]:
        """Return the state, and the row of the recorded steps up to which all is in it.

        It is not `whole` where steps were recorded after it: an observer has come back.
        """
        position, payload = self.rows(_STATE)[_STATE]
        try:
            state = _state_decoder.decode(payload)
        except (msgspec.MsgspecError, TypeError, RecursionError, ValueError) as error:
            raise Damaged(str(error)) from error
        state.whole = state.whole and not self._has_newer_steps()
        return state, position if isinstance(position, int) else 0

    def _has_newer_steps(self) -> bool:
        query = f"SELECT 1 FROM series WHERE key = '{_STATE}' AND written < (SELECT max(rowid) FROM steps)"
        with self._connected() as connection:
            return connection.execute(query).fetchone() is not None


def opened(database: Path, world: int, *, ended: bool = False) -> Kept:
    """Return the history of a run out of its file.

    Of a run that has `ended` each number is read when it is asked for, and nothing can be added. Where the file has
    more steps than were saved, they are taken in by `Kept.advance`; until then it is not `complete`. The same holds for
    all of it while another process holds the file.
    """
    kept = Kept(world)
    try:
        recorded = restore(kept, database, ended=ended)
    except Locked:
        recorded = _when_free(kept, database, ended=ended)
    if recorded is not None:
        kept.read_from(recorded)
    return kept


def _when_free(kept: Kept, database: Path, *, ended: bool) -> Iterator[wire.Steps | None]:
    while True:
        yield None
        with contextlib.suppress(Locked):
            yield from restore(kept, database, ended=ended) or ()
            return


def restore(kept: Kept, database: Path, *, ended: bool = False) -> Iterator[wire.Steps | None] | None:
    """Put what was saved in the file of a run into a history; return the recorded steps that are to follow, if any.

    `opened` is for a history that takes them in by itself.

    Raises:
        Locked: another process holds the file; it may be tried again with the same history.
    """
    kept.clear()
    file = _File(database)
    try:
        state, position = file.state()
        _check(state, kept)
        if ended and state.whole:
            _restore(kept, state, lambda name, course: _StoredCourse(kept, file, database, name, course.levels))
            if state.timed:
                kept.load_time = partial(_load_time, kept, file)
            return None
        courses = {
            name: _course(file, kept, name, course.levels, range(_columns_of(name)))
            for name, course in state.courses.items()
        }
        _restore(kept, state, lambda name, _: courses[name])
        if state.timed:
            _read_time(kept, file)
    except Damaged:
        kept.clear()
        return _all_steps(kept, database)
    known = {(rank, state.generation): seq for rank, seq in state.seqs.items()}
    return recording.read_steps_since(database, known, position, _every(kept.world))


def _every(world: int) -> int:
    """Return of how many records one is read: thousands of ranks record more in a second than can be read in one."""
    return max(1, world // wire.EACH_RECORD)


def _all_steps(kept: Kept, database: Path) -> Iterator[wire.Steps | None]:
    return recording.read_steps_since(database, {}, 0, _every(kept.world))


def _check(state: _State, kept: Kept) -> None:
    """Raise `Damaged` where a state is not one of this history."""
    form = state.form, state.world, state.capacity, state.columns, state.recorded
    if form != (_FORM, kept.world, kept.by_step.capacity, kept.columns, RECORDED):
        raise Damaged("of another form")
    numbers = [state.generation, state.before, state.refused, *state.seqs.values()]
    ranks = [*state.seqs]
    for course in state.courses.values():
        numbers += [course.levels, *course.first.values(), *course.last.values()]
        ranks += [*course.first, *course.last]
    names = [*state.names, *filter(None, state.courses)]
    if (
        not all(0 <= number < _MOST_STEPS for number in numbers)
        or not all(0 <= rank < kept.world for rank in ranks)
        or any(course.levels > _MOST_LEVELS for course in state.courses.values())
        or any(course.first.keys() != course.last.keys() for course in state.courses.values())
        or len(set(names)) > MOST_NAMES
        or any(clean_name(name) != name for name in names)
    ):
        raise Damaged("a number or a name is beyond all bounds")


def _restore(kept: Kept, state: _State, course_of: Callable[[str, _Course], Course]) -> None:
    kept.generation = state.generation
    kept.seqs = dict(state.seqs)
    kept.by_step.count_on(state.before)
    kept.by_step.names[:] = state.names
    kept.by_step.refused = state.refused
    for name, course in state.courses.items():
        kept.by_step.restore(name, course_of(name, course), course.first, course.last)


def _columns_of(name: str) -> int:
    return 1 if name else len(RECORDED)


def _course(file: _File, kept: Kept, name: str, levels: int, columns: Sequence[int]) -> Course:
    """Return a course of some of its columns."""
    prefixes = [f"step/{number}/{name}" for number in range(levels)]
    keys = [f"{prefix}/{part}" for prefix in prefixes for part in ("index", *columns)]
    found = file.rows(*keys)
    return Course.restored(
        kept.by_step.capacity,
        [
            _buckets(kept.world, found[f"{prefix}/index"][1], [found[f"{prefix}/{column}"][1] for column in columns])
            for prefix in prefixes
        ],
    )


def _buckets(world: int, index: object, columns: Sequence[object]) -> Buckets:
    ranks, steps, at_ms = unpacked(index, ("<u4", (None,)), ("<i8", (None,)), ("<i8", (None,)))
    if not len(ranks) == len(steps) == len(at_ms):
        raise Damaged("an index of unequal columns")
    with np.errstate(over="ignore"):
        steps, at_ms = np.cumsum(steps), np.cumsum(at_ms)
    if len(ranks) and not (int(ranks.max()) < world and 0 < int(steps.min()) <= int(steps.max()) < _MOST_STEPS):
        raise Damaged("a rank or a step is beyond all bounds")
    stats = np.empty((len(ranks), 4, len(columns)), np.float32)
    for place, payload in enumerate(columns):
        (found,) = unpacked(payload, ("<f4", (4, len(ranks))))
        bits = found.view(np.uint32)
        bits[:2] ^= bits[2]
        stats[:, :, place] = found.T
    return Buckets(ranks.astype(np.int64), steps, at_ms / 1e3, stats)


class _StoredCourse(Course):
    """A course that is in the file of an ended run, and of which only what is asked for comes into memory."""

    def __init__(self, kept: Kept, file: _File, database: Path, name: str, levels: int) -> None:
        super().__init__(kept.by_step.capacity)
        self._kept = kept
        self._file = file
        self._database = database
        self._name = name
        self._count = levels
        self._columns: dict[int, Course] = {}
        """By column, the one that was read last at the end."""

    def _of(self, column: int) -> Course:
        course = self._columns.pop(column, None)
        if course is None:
            try:
                course = _course(self._file, self._kept, self._name, self._count, (column,))
            except Locked:
                # Until the next `advance` the history is not complete, after which it is asked again.
                self._kept.read_from(iter((None,)))
                return Course(self._kept.by_step.capacity)
            except Damaged:
                self._kept.begin_anew(_all_steps(self._kept, self._database))
                course = Course(self._kept.by_step.capacity)
            for oldest in list(self._columns)[: 1 - _COURSES]:
                del self._columns[oldest]
        self._columns[column] = course
        return course

    def read(self, rank: int, column: int, first: float, last: float) -> Series:
        return self._of(column).read(rank, 0, first, last)

    def read_all(self, column: int, first: float, last: float) -> tuple[npt.NDArray[np.int64], Series]:
        return self._of(column).read_all(0, first, last)


def _load_time(kept: Kept, file: _File) -> None:
    # What is damaged is left out: the recorded steps of weeks would have to be read for it.
    with contextlib.suppress(Damaged):
        try:
            _read_time(kept, file)
        except Locked:
            kept.load_time = partial(_load_time, kept, file)
            kept.read_from(iter((None,)))


def _read_time(kept: Kept, file: _File) -> None:
    """Put the numbers over time into a history."""
    blocks = -(-kept.columns // BLOCK)
    names = [f"{ring}/{number}" for ring in _RINGS for number in range(len(WIDTHS_S))]
    found = file.rows(*(f"time/{name}/{part}" for name in names for part in (*range(blocks), "open")))
    for ring_name, ring in zip(_RINGS, kept.by_time.rings, strict=True):
        for number, level in enumerate(ring.levels):
            key = f"time/{ring_name}/{number}"
            buckets, sums = level.open
            buckets, sums = unpacked(found[f"{key}/open"][1], ("<i8", buckets.shape), ("<f8", sums.shape))
            level.open = buckets, sums
            for block in range(blocks):
                cells, numbers = level.shape_of(block)
                level.put(block, *unpacked(found[f"{key}/{block}"][1], ("<f4", cells), ("<u4", numbers)))
        ring.show_open()
