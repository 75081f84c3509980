"""Log files whose middle is cut out: its blocks are freed, while the size and every offset stay.

A writer at the end of the file notices nothing.  Linux can do it on the common file systems (ext4, XFS,
Btrfs, tmpfs); elsewhere the file stays as it is.  This module knows paths and bytes, and no runs.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

BLOCK: Final = 4096
"""A hole begins and ends at a multiple of this, so that it frees whole blocks."""
_KEEP_SIZE: Final = 0x01
_PUNCH_HOLE: Final = 0x02
_HEAD_SHARE: Final = 4
"""One part in so many of the remaining bytes is the beginning of the file."""


class Piece(NamedTuple):
    """A piece that was read of a file."""

    position: int
    """Offset of its beginning."""
    skipped: int
    """Bytes that are cut out just before it."""
    data: bytes


def cut(path: Path, room: int) -> int:
    """Cut the middle out of a plain file of ours, so that about `room` bytes stay; return the number of bytes freed.

    Raises:
        OSError: it is no such file, or the file system cannot do it (`errno.EOPNOTSUPP`).
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        before = os.fstat(descriptor)
        # A second hard link may be outside of the run, and files of other users are not ours to change.
        if not stat.S_ISREG(before.st_mode) or before.st_nlink != 1 or before.st_uid != os.geteuid():
            raise OSError(errno.EINVAL, "not a plain file of the run's own", str(path))
        head = -(-max(BLOCK, room // _HEAD_SHARE) // BLOCK) * BLOCK
        tail = max(0, before.st_size - max(BLOCK, room - head)) // BLOCK * BLOCK
        if tail <= head:
            return 0
        _punch(descriptor, head, tail - head)
        return max(0, (before.st_blocks - os.fstat(descriptor).st_blocks) * 512)
    finally:
        os.close(descriptor)


def _punch(descriptor: int, offset: int, length: int) -> None:
    # Here, because few readers of a log cut one.
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    function = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if function is None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if function(descriptor, _KEEP_SIZE | _PUNCH_HOLE, offset, length):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def read(descriptor: int, position: int, most: int) -> Piece:
    """Read from a position on, past a hole at it; the data is empty at the end of the file.

    Raises:
        OSError: it cannot be read.
    """
    begin = _seek(descriptor, position, os.SEEK_DATA)
    if begin is None:
        # There is a hole, or nothing, up to the end.
        size = os.fstat(descriptor).st_size
        return Piece(max(position, size), max(0, size - position), b"")
    end = _seek(descriptor, begin, os.SEEK_HOLE)
    length = most if end is None else min(most, max(1, end - begin))
    return Piece(begin, begin - position, os.pread(descriptor, length, begin))


def read_before(descriptor: int, position: int, most: int) -> Piece:
    """Read up to a position, back to a hole at most; where a hole ends there, it is `skipped`, and the data is empty.

    Raises:
        OSError: it cannot be read.
    """
    start = found = max(0, position - most)
    begin = end = start
    while (data := _seek(descriptor, found, os.SEEK_DATA)) is not None and data < position:
        hole = _seek(descriptor, data, os.SEEK_HOLE)
        begin, end = data, position if hole is None else min(hole, position)
        if end == position:
            return Piece(begin, 0, os.pread(descriptor, end - begin, begin))
        found = end
    if end == start and start:
        end = _before_hole(descriptor, start)
    return Piece(end, position - end, b"")


def _before_hole(descriptor: int, position: int) -> int:
    """Return the beginning of the hole around a position, or the position itself where it is in no hole."""
    found = 0
    while (hole := _seek(descriptor, found, os.SEEK_HOLE)) is not None and hole <= position:
        data = _seek(descriptor, hole, os.SEEK_DATA)
        if data is None or data > position:
            return hole
        found = data
    return position


def _seek(descriptor: int, position: int, what: int) -> int | None:
    try:
        return os.lseek(descriptor, position, what)
    except OSError as problem:
        if problem.errno == errno.ENXIO:
            return None
        if problem.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            # The file system does not report holes: all of the file counts as data.
            return position if what == os.SEEK_DATA else None
        raise


def gap_line(skipped: int) -> str:
    """Return the line that a reader shows in place of the part that was cut out of a log."""
    return f"… {skipped / 2**20:,.1f} MiB are not here: cut out to keep within its share of the disk, or not copied …"
