"""The history in the run's SQLite file: numbers of the newest steps one by one, of older ones in ever wider buckets.

What ranks tell becomes a piece of level 0, in the transaction that writes their records. Where a level has more than
its share, its oldest pieces are folded into one of the next level, whose buckets are four times as wide; so a history
grows with the logarithm of the run, and its file may be closed or lost at any moment. `Writer` and `Stored` are each
for the thread of their connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np

from ddptop.agent.record.history.packing import INDEX, packed, unpacked_cells
from ddptop.agent.record.history.rows import FORM, Progress, Rows
from ddptop.agent.record.history.series import Buckets, Floats, Series, Whole, doubles, together
from ddptop.agent.record.history.whole import WholeSteps
from ddptop.agent.wire.incoming import clean_name
from ddptop.agent.wire.steps.numbers import CUSTOM, MOST_NAMES, RECORDED, columns_for

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS
    buckets(kind TEXT, number TEXT, piece INTEGER, level INTEGER, first INTEGER, last INTEGER, payload BLOB,
    PRIMARY KEY(kind, piece, number));
CREATE TABLE IF NOT EXISTS progress(form INTEGER PRIMARY KEY, payload BLOB);
"""
_INSERT: Final = "INSERT OR REPLACE INTO buckets VALUES(?, ?, ?, ?, ?, ?, ?)"
_BITS: Final = 2
"""A bucket of the next level is as wide as 1 << `_BITS` buckets."""
_SPARE: Final = 4
"""One part in so many of a level is folded at once."""
_MOST_SMALL: Final = 64
"""Pieces of less than one part in so many of a level, until some of them are put together."""
_TOGETHER: Final = 16
"""One part in so many of a level is put together."""
_DEEPEST: Final = 24
"""Level whose oldest pieces are left out in the end."""
_MOST_WAITING: Final = 600
"""Pieces that wait at most, while they cannot be written."""
_FURTHEST: Final = 1 << 53
_ROW_BYTES: Final = 100
"""Bytes of a row and of its place in the index, beside its payload."""
_KINDS: Final = ("step", "time", "memory")

_decoder: Final = msgspec.msgpack.Decoder(Progress)


def steps_for(world: int) -> int:
    """Return how many buckets a level over the steps has of each rank, about."""
    return max(32, min(1024, (1 << 15) // max(1, world)))


@dataclass(slots=True)
class _Piece:
    """One piece in the file."""

    piece: int
    buckets: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Level:
    """The pieces of a level, oldest first."""

    pieces: list[_Piece] = field(default_factory=list)

    @property
    def buckets(self) -> int:
        return sum(piece.buckets for piece in self.pieces)

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.pieces)

    def first(self, begin: int, wanted: int) -> slice:
        """Return the pieces from one on that have so many buckets together, at least one."""
        end, found = begin, 0
        while end < len(self.pieces) and (end == begin or found < wanted):
            found += self.pieces[end].buckets
            end += 1
        return slice(begin, end)


class Stored:
    """The history in a file, to be asked."""

    def __init__(self, connection: sqlite3.Connection, world: int) -> None:
        """Read how far the run has come; raises one of `DAMAGE` where the file is unusable."""
        self.world = world
        self._connection = connection
        self.progress = _progress(connection, world)
        self.whole = WholeSteps(connection, world)
        """The newest steps as they were recorded."""

    @property
    def names(self) -> Sequence[str]:
        """Values given by the script."""
        return self.progress.names

    @property
    def last(self) -> int:
        """The last step of any rank, 0 before there was one."""
        return max(self.progress.last.values(), default=0)

    def span(self, ranks: Sequence[int]) -> tuple[int, int] | None:
        """Return the first and the last step of some ranks, None where there is none."""
        first, last = self.progress.first, self.progress.last
        known = [rank for rank in ranks if rank in last]
        return (min(first.get(rank, 1) for rank in known), max(last[rank] for rank in known)) if known else None

    def has(self, metric: str) -> bool:
        """Say whether there is a number of this name over the steps."""
        return metric in RECORDED or (metric.startswith(CUSTOM) and metric.removeprefix(CUSTOM) in self.names)

    def by_step(self, metric: str, first: int, last: int) -> tuple[Whole, Series]:
        """Return whose each bucket is, and a number over the steps: of the buckets that end between two steps."""
        _, found = self._read("step", metric, first, last)
        found = found.part(found.keys <= last)
        mean, low, high, count = doubles(found.cells[0])
        return found.ranks, Series(found.keys.astype(np.float64), found.at, mean, low, high, count)

    def by_time(self, metric: str, begin: int, end: int, width: int, ranks: Sequence[int]) -> Floats:
        """Return means over time, (ranks, columns), NaN where nothing is known.

        Args:
            metric: one of `numbers.OVER_TIME`; times are in ms.
            begin: the first column: seconds since the epoch, by the width.
            end: the column after the last one.
            width: of a column, in seconds.
            ranks: the rows, rising.
        """
        kind = "memory" if metric == "memory" else "time"
        bits, found = self._read(kind, metric, begin * width + 1, end * width)
        row_of = np.full(self.world, -1)
        row_of[list(ranks)] = np.arange(len(ranks))
        rows = row_of[found.ranks]
        mean, _, _, count = doubles(found.cells[0])
        inside = (rows >= 0) & (count > 0)
        rows, mean, count, keys, bits = (each[inside] for each in (rows, mean, count, found.keys, bits))
        last = np.minimum((keys - 1) // width, end - 1)
        # A bucket that is wider than a column stands for all columns that it covers.
        first = np.maximum(((keys - 1) >> bits << bits) // width, begin)
        covers = last - first + 1
        which = np.repeat(np.arange(len(rows)), covers)
        columns = np.arange(len(which)) - np.repeat(np.cumsum(covers) - covers, covers) + first[which]
        cell = rows[which] * (end - begin) + columns - begin
        size = len(ranks) * (end - begin)
        known = np.bincount(cell, count[which], size)
        with np.errstate(invalid="ignore"):
            means: Floats = np.bincount(cell, (mean * count)[which], size) / known
        return means.reshape(len(ranks), end - begin)

    def _read(self, kind: str, number: str, first: int, last: int) -> tuple[Whole, Buckets]:
        """Return how wide each bucket is, in bits, and the buckets that end at `first` or later, and begin at `last` or
        before, with one number.
        """
        query = """SELECT cells.piece, cells.level, idx.payload, cells.payload FROM buckets AS cells
            JOIN buckets AS idx ON idx.kind = cells.kind AND idx.number = '' AND idx.piece = cells.piece
            WHERE cells.kind = ? AND cells.number = ? AND cells.last >= ?
            AND cells.first <= ? + (1 << min(? * cells.level, 62)) ORDER BY cells.piece"""
        indexes, cells, widths, pieces = [], [], [], []
        for piece, level, index, payload in self._connection.execute(query, (kind, number, first, last, _BITS)):
            # A damaged piece costs itself.
            with suppress(ValueError, TypeError):
                read = np.frombuffer(index, INDEX)
                both = [np.full(len(read), int(each)) for each in (min(_BITS * int(level), 62), piece)]
                cells.append(unpacked_cells(payload, read["weight"]))
                indexes.append(read)
                widths.append(both[0])
                pieces.append(both[1])
        index = np.concatenate(indexes) if indexes else np.empty(0, INDEX)
        found = Buckets(
            (number,), index["rank"].astype(np.int64), index["key"], index["at"], index["weight"],
            np.concatenate(cells, axis=1)[None] if cells else np.empty((1, 4, 0), np.float32),
        )  # fmt: skip
        bits = np.concatenate(widths) if widths else np.empty(0, np.int64)
        where = (found.keys >= first) & ((found.keys - 1) >> bits << bits < last) & (found.ranks < self.world)
        if kind == "step" and self.progress.since and pieces:
            where &= np.concatenate(pieces) >= _since(self.progress, found.ranks)
        return bits[where], found.part(where)


class Writer(Stored):
    """The history of a run that goes on."""

    def __init__(self, connection: sqlite3.Connection, world: int) -> None:
        """Go on with what the file has: in a transaction of its own."""
        with connection:
            connection.executescript(_TABLES)
            super().__init__(connection, world)
            if not self.progress.pieces:
                connection.execute("DELETE FROM buckets")
        self.rows = Rows(self.progress)
        """What ranks have told since the last piece."""
        self._waiting: list[tuple[int, str, Buckets]] = []
        """Pieces to be written."""
        self._share = {"step": steps_for(world) * world}
        self._share |= dict.fromkeys(("time", "memory"), columns_for(world) * world)
        self._levels: dict[tuple[str, int], _Level] = {}
        self._measure()

    @property
    def bytes(self) -> int:
        """Bytes of all buckets in the file."""
        return sum(level.bytes for level in self._levels.values())

    def settle(self) -> None:
        """Make pieces of what ranks have told since the last ones."""
        try:
            for kind, buckets in self.rows.settled().items():
                for part in buckets.cut(max(1, self._share[kind] // _SPARE)):
                    self.progress.pieces += 1
                    self._waiting.append((self.progress.pieces, kind, part))
        finally:
            # What no piece can be made of now, none can be made of later.
            self.rows.clear()

    def write(self) -> None:
        """Write the pieces that wait, within the caller's transaction; `written` or `failed` follows it."""
        for piece, kind, buckets in self._waiting:
            self._put(kind, 0, piece, buckets)
        self._connection.execute(
            "INSERT OR REPLACE INTO progress VALUES(?, ?)", (FORM, msgspec.msgpack.encode(self.progress))
        )

    def written(self) -> None:
        """Let go of what has been written."""
        self._waiting.clear()

    def failed(self) -> None:
        """Keep what could not be written for the next attempt, as far as there is room."""
        del self._waiting[:-_MOST_WAITING]
        self._measure()

    def fold(self, room: int) -> bool:
        """Fold a part of a level that has more than its share, or of the largest where all have more than `room` bytes;
        where there are many small pieces, put some of them together.

        In a transaction of its own; returns False where there is nothing to do.
        """
        for (kind, level), held in self._levels.items():
            share = self._share[kind]
            if held.buckets > share * (1 + 1 / _SPARE):
                self._fold(kind, level, level + 1, held.first(0, share // _SPARE))
                return True
            small = [at for at, piece in enumerate(held.pieces) if piece.buckets < share // _MOST_SMALL]
            if len(small) > _MOST_SMALL:
                self._fold(kind, level, level, held.first(small[0], share // _TOGETHER))
                return True
        if self._levels and self.bytes > room:
            kind, level = max(self._levels, key=lambda each: self._levels[each].bytes)
            held = self._levels[kind, level]
            self._fold(kind, level, level + 1, held.first(0, min(self._share[kind], held.buckets) // _SPARE))
            return True
        return False

    def _fold(self, kind: str, level: int, to: int, where: slice) -> None:
        held = self._levels[kind, level].pieces
        chosen, place = held[where], where.start if to == level else None
        # Within a kind the pieces of a level have numbers that follow each other.
        ends = chosen[0].piece, chosen[-1].piece
        try:
            with self._connection:
                parts = self._pieces(kind, *ends)
                self._connection.execute("DELETE FROM buckets WHERE kind = ? AND piece BETWEEN ? AND ?", (kind, *ends))
                del held[where]
                if parts and level < _DEEPEST:
                    self._put(kind, to, ends[1], together(parts).folded(_BITS * to), place)
        except BaseException:
            self._measure()
            raise
        if not held:
            del self._levels[kind, level]

    def _put(self, kind: str, level: int, piece: int, buckets: Buckets, place: int | None = None) -> None:
        first, last = int(buckets.keys.min()), int(buckets.keys.max())
        payloads = packed(buckets, ranged=kind == "step")
        self._connection.executemany(
            _INSERT, [(kind, number, piece, level, first, last, payload) for number, payload in payloads.items()]
        )
        size = sum(len(payload) + _ROW_BYTES for payload in payloads.values())
        pieces = self._levels.setdefault((kind, level), _Level()).pieces
        pieces.insert(len(pieces) if place is None else place, _Piece(piece, len(buckets.ranks), size))

    def _pieces(self, kind: str, first: int, last: int) -> Sequence[Buckets]:
        """Return pieces with all their numbers, without ranks that have begun to count anew since, or are damaged."""
        rows: dict[int, dict[str, bytes]] = {}
        query = "SELECT piece, number, payload FROM buckets WHERE kind = ? AND piece BETWEEN ? AND ?"
        for piece, number, payload in self._connection.execute(query, (kind, first, last)):
            rows.setdefault(piece, {})[number] = payload
        found = []
        for piece, payloads in sorted(rows.items()):
            with suppress(ValueError, TypeError, KeyError):
                index = np.frombuffer(payloads.pop(""), INDEX)
                cells = [unpacked_cells(payload, index["weight"]) for payload in payloads.values()]
                part = Buckets(
                    tuple(payloads), index["rank"].astype(np.int64), index["key"], index["at"], index["weight"],
                    np.stack(cells),
                )  # fmt: skip
                where = part.ranks < self.world
                if kind == "step" and self.progress.since:
                    where &= _since(self.progress, part.ranks) <= piece
                if where.any():
                    found.append(part.part(where))
        return found

    def _measure(self) -> None:
        self._levels.clear()
        sizes: dict[tuple[str, int], tuple[int, _Piece]] = {}
        query = "SELECT kind, piece, level, number, length(payload) FROM buckets ORDER BY piece"
        for kind, number, level, name, size in self._connection.execute(query):
            if kind not in _KINDS or not isinstance(level, int):
                continue
            _, piece = sizes.setdefault((kind, number), (level, _Piece(number)))
            piece.bytes += (size or 0) + _ROW_BYTES
            if not name:
                piece.buckets = (size or 0) // INDEX.itemsize
        for (kind, _), (level, piece) in sizes.items():
            self._levels.setdefault((kind, level), _Level()).pieces.append(piece)


def _since(progress: Progress, ranks: Whole) -> Whole:
    """Return the first piece whose steps count, of each of some ranks."""
    since = np.zeros(progress.world, np.int64)
    since[list(progress.since)] = list(progress.since.values())
    return since[np.minimum(ranks, progress.world - 1)]


def _progress(connection: sqlite3.Connection, world: int) -> Progress:
    """Return how far the ranks have come by the file; of one that says nothing sound of it, that nothing is known."""
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'progress'").fetchone()
    row = known and connection.execute("SELECT payload FROM progress WHERE form = ?", (FORM,)).fetchone()
    with suppress(msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        if row and _is_sound(progress := _decoder.decode(row[0]), world):
            return progress
    return Progress(FORM, world)


def _is_sound(progress: Progress, world: int) -> bool:
    by_rank = progress.seqs, progress.first, progress.last, progress.since
    numbers = [progress.generation, progress.before, progress.refused, progress.pieces]
    numbers += [number for each in by_rank for number in each.values()]
    return (
        (progress.form, progress.world) == (FORM, world)
        and all(0 <= number < _FURTHEST for number in numbers)
        and all(0 <= rank < world for each in by_rank for rank in each)
        and len(progress.names) <= MOST_NAMES
        and all(clean_name(name) == name for name in progress.names)
    )
