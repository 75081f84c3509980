"""A log that others write: stretches of its lines from any place on, forwards and backwards.

No descriptor is held between two reads, so that any number of logs can be looked at. A log may be cut short, replaced,
or have its middle cut out (`sparse`) while it is read. This module knows bytes, and neither text nor ranks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from ddptop.agent.run.files import sparse
from ddptop.agent.run.files.private import open_plain

STRETCH: Final = 64 << 10
"""Bytes read at once, unless the caller says otherwise. A line that is longer comes in pieces of this size."""
_SAMPLE: Final = 64
"""Bytes before the place read last that are compared, because a log may be cut short and grow beyond it again."""


class RawLine(NamedTuple):
    """A line of a log, without its end."""

    begin: int
    """Offset of its first byte."""
    end: int
    """Offset after its end."""
    content: bytes


class Stretch(NamedTuple):
    """Lines that follow each other in a log."""

    begin: int
    """Offset of the first line."""
    end: int
    """Offset after the last line, from which reading goes on."""
    data: bytes = b""
    """The lines; they end at `end`, and begin after what was cut out."""
    skipped: int = 0
    """Bytes that are cut out at the beginning."""
    rest: bytes = b""
    """The beginning of a line that has not ended; it begins at `end`."""

    @property
    def lines(self) -> list[RawLine]:
        """The lines; a part that was cut out is one that says so."""
        at = self.begin + self.skipped
        found = [RawLine(self.begin, at, sparse.gap_line(self.skipped).encode())] if self.skipped else []
        contents = self.data.split(b"\n")
        if not contents[-1]:
            contents.pop()
        for content in contents:
            end = min(at + len(content) + 1, self.end)
            found.append(RawLine(at, end, content))
            at = end
        return found


class LogFile:
    """The file of a log. `after` and `before` take offsets at which a line begins."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.begun = 0
        """How often a file was begun with: the first one, and each that was shorter or another than before."""
        self.size = 0
        """Bytes at the last read."""
        self.changed_at = 0.0
        """Time of the last change to the file, in seconds since the epoch, at the last read."""
        self._inode = -1
        self._sample = b""
        self._sample_end = -1
        self._unchanged: tuple[int, ...] = ()
        """Place, inode, size and time of change with which `after` has found nothing to read."""

    def after(self, position: int, most: int = STRETCH) -> Stretch | None:
        """Read the lines from an offset on, at most so many bytes; None where nothing was added.

        A file that has taken the place of the one before is read from its beginning, and `begun` has grown.

        Raises:
            OSError: it is not there, is something else, or cannot be read.
        """
        if self._unchanged:
            seen = os.lstat(self.path)
            if self._unchanged == (position, seen.st_ino, seen.st_size, seen.st_mtime_ns):
                return None
        with open_plain(self.path) as file:
            descriptor = file.fileno()
            status = self._look(descriptor)
            if self._is_replaced(descriptor, status):
                self.begun += 1
                self._begin(status)
                position = 0
            piece = sparse.read(descriptor, position, most)
        stretch = _forwards(piece, position, most, status.st_size)
        self._unchanged = ()
        if stretch is None or stretch.begin == stretch.end:
            self._unchanged = (position, status.st_ino, status.st_size, status.st_mtime_ns)
        if piece.data:
            self._sample_end = piece.position + len(piece.data)
            self._sample = piece.data[-_SAMPLE:]
        return stretch

    def before(self, position: int, most: int = STRETCH) -> Stretch:
        """Read the lines before an offset, at most so many bytes; none at the beginning of the file.

        Raises:
            OSError: it is not there, is something else, or cannot be read.
        """
        with open_plain(self.path) as file:
            status = self._look(file.fileno())
            if self._inode not in (-1, status.st_ino):
                # `after` begins with the file that has taken its place.
                return Stretch(position, position)
            position = min(position, status.st_size)
            piece = sparse.read_before(file.fileno(), position, most)
        return _backwards(piece, position, most)

    def end(self) -> int:
        """Begin with the file that is there, and return its size, at which a line need not begin.

        Raises:
            OSError: it is not there, is something else, or cannot be read.
        """
        with open_plain(self.path) as file:
            status = self._look(file.fileno())
        if status.st_ino != self._inode:
            self.begun += 1
            self._begin(status)
        return status.st_size

    def _look(self, descriptor: int) -> os.stat_result:
        status = os.fstat(descriptor)
        self.size, self.changed_at = status.st_size, status.st_mtime
        return status

    def _begin(self, status: os.stat_result) -> None:
        self._inode = status.st_ino
        self._sample, self._sample_end = b"", -1
        self._unchanged = ()

    def _is_replaced(self, descriptor: int, status: os.stat_result) -> bool:
        if status.st_ino != self._inode or status.st_size < self._sample_end:
            return True
        there = os.pread(descriptor, len(self._sample), max(0, self._sample_end - len(self._sample)))
        # Zeros are there where the part was cut out meanwhile.
        return there != self._sample and bool(there.strip(b"\0"))


def _forwards(piece: sparse.Piece, position: int, most: int, size: int) -> Stretch | None:
    # A hole up to the end is shown with the text after it.
    if not piece.data:
        return None
    read_to = piece.position + len(piece.data)
    full = len(piece.data) >= most
    whole = piece.data.rfind(b"\n") + 1
    if (full and not whole) or (not full and read_to < size):
        # A line longer than the stretch, or what is there of a line before a hole.
        whole = len(piece.data)
    end = piece.position + whole
    rest = b"" if full and read_to < size else piece.data[whole:]
    return Stretch(position, end if whole else position, piece.data[:whole], piece.skipped if whole else 0, rest)


def _backwards(piece: sparse.Piece, position: int, most: int) -> Stretch:
    if not piece.data:
        return Stretch(piece.position, position, skipped=piece.skipped)
    begin, data = piece.position, piece.data
    first = data.find(b"\n") + 1
    if begin and begin == position - most and 0 < first < len(data):
        # It begins in the middle of a line, which comes with the next stretch.
        begin, data = begin + first, data[first:]
    return Stretch(begin, position, data)
