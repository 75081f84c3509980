"""The end of a log: as text, and piece by piece for a copy at another place.

The offsets of a copy are those of the log: what was not copied is a hole in it, which readers show (`sparse`).
"""

from __future__ import annotations

import os
from pathlib import Path

from ddptop.agent.run.files.private import open_plain
from ddptop.agent.run.files.sparse import BLOCK
from ddptop.agent.wire import LogPiece


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


def grown(path: Path, inode: int, offset: int, *, most: int, tail: int, behind: int) -> LogPiece | None:
    """Read on in a log from an offset; None where nothing was added.

    Args:
        path: the file.
        inode: of the file that was read before, -1 for none.
        offset: up to which it was read.
        most: bytes that are read.
        tail: bytes before the end at which to begin with a file that was not read before.
        behind: where more than so many bytes have been added, those before the tail are passed over.

    Raises:
        OSError: it is not there, is no plain file, or cannot be read.
    """
    status = os.lstat(path)
    if (status.st_ino, status.st_size) == (inode, offset):
        return None
    with open_plain(path) as file:
        status = os.fstat(file.fileno())
        size = status.st_size
        anew = status.st_ino != inode or size < offset
        if anew or size - offset > behind:
            # What is missing before it is a hole in the copy.
            offset = max(0 if anew else offset, (size - tail) // BLOCK * BLOCK, 0)
        return LogPiece(status.st_ino, offset, os.pread(file.fileno(), min(most, size - offset), offset), size, anew)
