"""Files that nobody else may touch: owner and mode are checked before one is trusted, and no link is followed.

The runtime directory stands in /tmp, where anybody may have put something first; and root
reads the runs of others.  Knows no run, only paths.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

from ddptop.agent.text import Complaint

LARGEST_RECORD: Final = 1 << 20
"""Bytes of a record at most; what is larger was not written by us."""


class RunDirError(Complaint):
    """What is wrong with a run directory and what to do about it, in one line for the user."""


def check_folder(path: Path, owner: int, cure: str) -> None:
    """Refuse what is no directory of `owner`'s alone; `cure` says what to do.

    Raises:
        RunDirError: it is somebody else's, a link, or open to others.
        OSError: it is not there.
    """
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise RunDirError(f"{path}: not a directory; {cure}")
    _check_owner(path, status, owner, cure)
    if status.st_mode & 0o077:
        raise RunDirError(f"{path}: others can enter it (mode {stat.S_IMODE(status.st_mode):04o}); chmod 700 it")


def check_socket(address: str, owner: int) -> None:
    """Refuse the socket of an `ipc://` address that is not `owner`'s alone; one that is not there yet is no danger.

    Raises:
        RunDirError: it is somebody else's, no socket, or open to others.
    """
    path = Path(address.removeprefix("ipc://"))
    try:
        status = path.lstat()
    except OSError:
        return
    cure = "it was put there by somebody else; remove it"
    if not stat.S_ISSOCK(status.st_mode):
        raise RunDirError(f"{path}: not a socket; {cure}")
    _check_owner(path, status, owner, cure)
    if status.st_mode & 0o077:
        raise RunDirError(f"{path}: others can use it (mode {stat.S_IMODE(status.st_mode):04o}); chmod 600 it")


def _check_owner(path: Path, status: os.stat_result, owner: int, cure: str) -> None:
    if status.st_uid != owner:
        whose = "not to you" if owner == os.getuid() else f"not to user {owner}"
        raise RunDirError(f"{path}: belongs to user {status.st_uid}, {whose}; {cure}")


def seal(address: str) -> None:
    """Take the socket of an `ipc://` address, just bound, from everybody else."""
    os.chmod(address.removeprefix("ipc://"), 0o600)


def open_plain(path: Path) -> BinaryIO:
    """Open a plain file for reading: no link is followed, and neither a pipe nor a device is waited for.

    Raises:
        OSError: it is not there, or is something else.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as problem:
        raise OSError(None, f"no path ({problem})", str(path)) from problem
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(None, "not a plain file", str(path))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read(path: Path, limit: int = LARGEST_RECORD) -> bytes:
    """Return a record: a plain file of at most `limit` bytes.

    Raises:
        OSError: it is not there, is something else, or is larger.
    """
    with open_plain(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(None, "larger than any record", str(path))
    return content


def tail(path: Path, limit: int = 65536) -> bytes:
    """Return the last `limit` bytes of a plain file, nothing where there is none."""
    try:
        with open_plain(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
            return file.read(limit)
    except OSError:
        return b""


def replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; a reader never sees half of it.

    Raises:
        OSError: nothing was written.
    """
    # The number of the process keeps two writers from sharing one temporary file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


class Claim:
    """The right to look after a run: a lock in its folder that one process at a time holds, and that dies with it."""

    _NAME: Final = "lock"

    def __init__(self, folder: int, lock: int) -> None:
        self._folder = folder
        self._lock = lock

    @classmethod
    def take(cls, path: Path) -> Claim | None:
        """Return the claim on the run in this folder, None while another process holds it.

        Raises:
            OSError: the folder is gone, or cannot be written.
        """
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        lock = -1
        try:
            while True:
                flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
                lock = os.open(cls._NAME, flags, 0o600, dir_fd=folder)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Who let go has removed the file, maybe between our two calls: such a lock keeps nobody out.
                with contextlib.suppress(FileNotFoundError):
                    if os.stat(cls._NAME, dir_fd=folder).st_ino == os.fstat(lock).st_ino:
                        return cls(folder, lock)
                os.close(lock)
                lock = -1
        except OSError as problem:
            for descriptor in (lock, folder):
                if descriptor >= 0:
                    os.close(descriptor)
            if isinstance(problem, BlockingIOError):
                return None
            raise

    def release(self) -> None:
        """Let go. By the folder itself, not by its name, which another run may have taken by now."""
        with contextlib.suppress(OSError):
            os.unlink(self._NAME, dir_fd=self._folder)
        os.close(self._lock)
        os.close(self._folder)

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
