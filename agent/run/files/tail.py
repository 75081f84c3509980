"""The end of a log, and a log as it grows.

A log may be cut short, replaced, or have its middle cut out (`sparse`) while it is read.
"""

from __future__ import annotations

import os
from pathlib import Path

from ddptop.agent.run.files import sparse
from ddptop.agent.run.files.private import open_plain


def end(path: Path, limit: int = 65536, begin: int = 0) -> str:
    """Return the last `limit` bytes of a log as text, not cleaned; nothing where there is no plain file.

    Of a log that was not cut short since it had `begin` bytes, only what was added is returned.
    """
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(begin if begin <= size else 0, size - limit))
            return file.read(limit).decode(errors="replace")
    except OSError:
        return ""


class Follower:
    """Reads the lines of a log as they are written; a file that takes its place is read from its beginning."""

    def __init__(self, path: Path, last: int | None = None) -> None:
        """Follow from the first byte, or from `last` bytes before the end that there is at the first read."""
        self.path = path
        self.rest = b""
        """What is written of a line that has not ended; the reader may shorten it, lest it fill the memory."""
        self.begun = 0
        """How often a file was begun with: the first one, and each that was shorter or another than before."""
        self._last = last
        self._inode = -1
        self._position = 0

    def read(self, most: int) -> list[bytes] | None:
        """Read at most so many bytes, and return the lines that have ended in them; None where nothing was added.

        Where the middle of the file was cut out, one line says so.

        Raises:
            OSError: it is not there, is something else, or cannot be read.
        """
        with open_plain(self.path) as file:
            descriptor = file.fileno()
            status = os.fstat(descriptor)
            if status.st_ino != self._inode or status.st_size < self._position:
                self._begin(descriptor, status)
            piece = sparse.read(descriptor, self._position, most)
        # A hole up to the end is told with what comes after it.
        if not piece.data:
            return None
        self._position = piece.position + len(piece.data)
        ended: list[bytes] = []
        if piece.skipped:
            # The line before it is whole, as far as it is still there.
            ended = [self.rest] if self.rest else []
            ended.append(sparse.told(piece.skipped).encode())
            self.rest = b""
        *whole, self.rest = (self.rest + piece.data).split(b"\n")
        return ended + whole

    def _begin(self, descriptor: int, status: os.stat_result) -> None:
        self.begun += 1
        self.rest = b""
        self._inode = status.st_ino
        self._position = 0
        if self._last is not None:
            self._position = sparse.before_hole(descriptor, max(0, status.st_size - self._last))
