"""Log files whose middle is cut out: the blocks go, while the size and every offset stay.

Whoever writes at the end notices nothing.  Linux alone can do it, on the file systems that people use (ext4, XFS,
Btrfs, tmpfs); where it cannot, the file stays as it is.  Knows paths and bytes, no run.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

BLOCK: Final = 4096
"""What is cut out begins and ends at a multiple of this, so that no block stays for the sake of a part of it."""
_KEEP_SIZE: Final = 0x01
_PUNCH_HOLE: Final = 0x02
_HEAD_SHARE: Final = 4
"""Of what stays, one part in so many is the beginning of the file."""


class Piece(NamedTuple):
    """What was read of a file."""

    position: int
    """Where it begins."""
    skipped: int
    """Bytes that were cut out just before it."""
    data: bytes


def cut(path: Path, room: int) -> int:
    """Cut the middle out of a plain file of ours, so that about `keep` bytes stay; return the bytes that came free.

    Raises:
        OSError: it is no such file, or the file system cannot do it (`errno.EOPNOTSUPP`).
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        before = os.fstat(descriptor)
        # A second name may stand outside of the run, and a file of somebody else's is not ours to change.
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
    libc = ctypes.CDLL(None, use_errno=True)
    function = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if function is None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if function(descriptor, _KEEP_SIZE | _PUNCH_HOLE, offset, length):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def read(descriptor: int, position: int, most: int) -> Piece:
    """Read on from a position, past what was cut out there; no data at the end of the file.

    Raises:
        OSError: it cannot be read.
    """
    begin = _seek(descriptor, position, os.SEEK_DATA)
    if begin is None:
        # Nothing but a hole, or nothing at all, up to the end.
        size = os.fstat(descriptor).st_size
        return Piece(max(position, size), max(0, size - position), b"")
    end = _seek(descriptor, begin, os.SEEK_HOLE)
    length = most if end is None else min(most, max(1, end - begin))
    return Piece(begin, begin - position, os.pread(descriptor, length, begin))


def before_hole(descriptor: int, position: int) -> int:
    """Return where the hole begins that a position lies in, and the position itself where it lies in none."""
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
            # A file system that does not tell: all of it is data.
            return position if what == os.SEEK_DATA else None
        raise


def told(skipped: int) -> str:
    """Return the line that stands where the middle of a log was cut out."""
    return f"… {skipped / 2**20:,.1f} MiB cut out here, so that the log keeps within its share of the disk …"
