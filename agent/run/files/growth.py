"""The end of a log and what is added to it, piece by piece, for a copy at another place.

The offsets of a copy are those of the log: what was not copied is a hole in it, which readers show (`sparse`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from ddptop.agent.run.files.private import open_plain

PAGE: Final = 4096
"""A copy begins at a multiple of this, so that what is missing before it is a hole."""


class Growth(NamedTuple):
    """A piece of a log."""

    inode: int
    """Of the file."""
    offset: int
    """Where the piece begins."""
    content: bytes
    size: int
    """Bytes of the file."""
    anew: bool
    """True where it is another file than the one read before, or was cut short."""


def grown(path: Path, inode: int, offset: int, *, most: int, tail: int, behind: int) -> Growth | None:
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
            offset = max(0 if anew else offset, (size - tail) // PAGE * PAGE, 0)
        return Growth(status.st_ino, offset, os.pread(file.fileno(), min(most, size - offset), offset), size, anew)
