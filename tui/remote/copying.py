"""Parts of a run's files, as they are sent: the database, whole or without its steps, and the ends of the logs."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ddptop.agent.run.files.database import DAMAGE
from ddptop.agent.run.files.growth import PAGE, grown
from ddptop.agent.run.files.private import is_plain
from ddptop.tui.remote.messages import PIECE, Piece

LARGEST_WHOLE: Final = 64 << 20
"""Bytes of the database of an ended run that is sent whole; of a larger one, all but the steps."""
DATABASE: Final = "run.db"
_MOST_EVENTS: Final = 5_000
_STEPS: Final = re.compile(r"steps(?:_\d+)?")
_TABLE: Final = re.compile(r"(?!sqlite_)[a-z][a-z_0-9]{0,40}")
_TAILS: Final = 4 << 20
"""Bytes of the ends of all logs together that are sent at first."""
_TAIL: Final = 256 << 10
"""The same of one log."""
_AT_ONCE: Final = 128 << 10
"""Bytes of all logs together in one look; what is written faster is left out in the middle."""


def database(file: Path, *, whole: bool) -> Iterator[Piece]:
    """Yield a run's database in pieces: `whole`, or without the steps. Nothing, where it cannot be read."""
    if not is_plain(file):
        return
    with contextlib.suppress(OSError):
        whole = whole and file.stat().st_size <= LARGEST_WHOLE
    with tempfile.TemporaryDirectory(prefix="ddptop-") as folder:
        copy = Path(folder) / DATABASE
        try:
            # A name that is a URI, for the other file too.
            with contextlib.closing(sqlite3.connect(copy.as_uri(), uri=True, timeout=2.0)) as target:
                target.execute("ATTACH ? AS run", (f"{file.absolute().as_uri()}?mode=ro",))
                _copy(target, whole=whole)
        except (*DAMAGE, OSError):
            return
        yield from _pieces(copy)


def _copy(target: sqlite3.Connection, *, whole: bool) -> None:
    tables = target.execute("SELECT name, sql FROM run.sqlite_master WHERE type = 'table' AND sql IS NOT NULL")
    for name, schema in tables.fetchall():
        if not _TABLE.fullmatch(name):
            continue
        target.execute(schema)
        if whole or not _STEPS.fullmatch(name):
            rows = f"SELECT * FROM run.{name}"
            if name == "events" and not whole:
                rows = f"SELECT * FROM ({rows} ORDER BY at_ns DESC LIMIT {_MOST_EVENTS}) ORDER BY at_ns"
            target.execute(f"INSERT INTO main.{name} {rows}")
    target.commit()


def _pieces(file: Path) -> Iterator[Piece]:
    size = file.stat().st_size
    with file.open("rb") as content:
        offset = 0
        while data := content.read(PIECE):
            yield Piece(DATABASE, offset, data, anew=not offset, last=offset + len(data) >= size)
            offset += len(data)


class Tails:
    """The ends of the logs of a run, and what is added to them."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        """Begin with the ends; `names` are those of the files in the folder."""
        self._folder = folder
        self._names = names
        self._at: dict[str, tuple[int, int]] = {}
        """By name, inode and offset from which it is read on."""
        self._next = 0

    def added(self) -> Iterator[Piece]:
        """Yield what was added, of all logs together a bounded part; each log has its turn."""
        left = _AT_ONCE if self._at else _TAILS
        tail = max(PAGE, min(_TAIL, _TAILS // max(1, len(self._names))))
        turns = self._names[self._next :] + self._names[: self._next]
        for name in turns:
            if left <= 0:
                break
            self._next = (self._next + 1) % len(self._names)
            with contextlib.suppress(OSError):
                for piece in self._of(name, tail, left):
                    left -= len(piece.content)
                    yield piece

    def _of(self, name: str, tail: int, most: int) -> Iterator[Piece]:
        path = self._folder / name
        behind = max(most, tail)
        # A tail begins with a whole page.
        left = behind + PAGE
        while left > 0:
            inode, at = self._at.get(name, (-1, 0))
            found = grown(path, inode, at, most=min(PIECE, left), tail=tail, behind=behind)
            if found is None:
                return
            self._at[name] = found.inode, found.offset + len(found.content)
            if not found.content:
                return
            yield Piece(f"logs/{name}", found.offset, found.content, anew=found.anew)
            left -= len(found.content)
