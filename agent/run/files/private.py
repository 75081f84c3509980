"""Files that nobody else may touch: owner and mode of their folder are checked, and no link to one is followed.

The runtime directory stands in /tmp, where anybody may have put something first; and root
reads the runs of others.  Knows no run, only paths.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, ClassVar, Final

from ddptop.agent.text import Complaint

_PROBE_S: Final = 0.02
"""How long a folder may be locked by somebody who only looks whether it is held."""
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


def is_plain(path: Path) -> bool:
    """Say whether there is a plain file and no link, nor one beside it: SQLite opens what it needs by name."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return False
        beside = (path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal"))
        return all(stat.S_ISREG(each.lstat().st_mode) for each in beside if os.path.lexists(each))
    except OSError:
        return False


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


def write(path: Path, content: bytes) -> None:
    """Write a new file that is ours alone, in the place of what one of its name has left there; follow no link.

    Raises:
        OSError: it is not whole, and the caller removes what there is of it.
    """
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb", buffering=0) as file:
        left = memoryview(content)
        while left:
            left = left[file.write(left) or 0 :]


def replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; a reader never sees half of it.

    Raises:
        OSError: nothing was written.
    """
    # The number of the thread keeps two writers from sharing one temporary file.
    temporary = path.with_name(f".{path.name}.{threading.get_native_id()}")
    try:
        write(temporary, content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


class Hold:
    """A shared lock on a folder by a process that lives in it: many hold one at a time, and each dies with its process.

    Neither we remove a folder that is held nor do cleaners that go by age (tmpfiles.d(5): a directory with a BSD
    lock is skipped, with all that is below it).  A forked child does not go on to hold what its parent holds.
    """

    _all: ClassVar[set[Hold]] = set()

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self._folder = status.st_dev, status.st_ino
        self._all.add(self)

    @classmethod
    def take(cls, path: Path) -> Hold:
        """Return a hold on a folder.

        Raises:
            OSError: it is gone, or somebody is about to remove it.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            deadline = time.monotonic() + _PROBE_S
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return cls(descriptor)
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise
                time.sleep(0.001)
        except OSError:
            os.close(descriptor)
            raise

    @staticmethod
    def is_free(path: Path) -> bool:
        """Say whether nobody holds a folder, in whatever container; False where that cannot be known."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            # Let go at once: who takes hold meanwhile waits for longer than this takes.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            return True
        finally:
            os.close(descriptor)

    def release(self) -> None:
        """Let go; a second time does nothing."""
        self._all.discard(self)
        descriptor, self._descriptor = self._descriptor, -1
        with contextlib.suppress(OSError):
            # A script that closes all descriptors to become a daemon has let go for us, and the number is its own now.
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) == self._folder:
                os.close(descriptor)

    @classmethod
    def _forget(cls) -> None:
        # To close a copy leaves the parent's lock as it is; it goes when the last copy does.
        for hold in list(cls._all):
            hold.release()


os.register_at_fork(after_in_child=Hold._forget)


class Claim:
    """The right to look after a run: a lock in its folder that one process at a time holds, and that dies with it."""

    _NAME: Final = "lock"

    def __init__(self, folder: int, lock: int) -> None:
        self._folder = folder
        self._lock = lock

    @classmethod
    def take(cls, path: Path, *, to_remove: bool = False) -> Claim | None:
        """Return the claim on the run in this folder, None while another process holds it.

        Who wants it `to_remove` the folder gets it on a full disk too, where nobody can make the file: to be used
        with `excludes_all`.

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
            if to_remove and problem.errno in (errno.ENOSPC, errno.EDQUOT):
                return cls(folder, -1)
            for descriptor in (lock, folder):
                if descriptor >= 0:
                    os.close(descriptor)
            if isinstance(problem, BlockingIOError):
                return None
            raise

    def excludes_all(self, path: Path) -> bool:
        """Say whether the folder at `path` is still the claimed one and nobody holds it; from then on nobody can."""
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(self._folder), path.lstat())
        except OSError:
            return False

    def release(self) -> None:
        """Let go. By the folder itself, not by its name, which another run may have taken by now."""
        if self._lock >= 0:
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
