"""Access to files that no other user may change: owner and mode of their folder are checked, links are not followed.

The runtime directory is in /tmp, where any user may have created its name first; and root
reads the runs of other users.  This module knows paths, and no runs.
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
"""Time for which `Hold.is_free` of another process may lock a folder."""
LARGEST_RECORD: Final = 1 << 20
"""Bytes of a record at most; ddptop writes none that is larger."""


_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR)
"""Errors that say that there is no file of ours."""


class RunDirError(Complaint):
    """An error in a run directory as one line for the user: what is wrong and what to do."""


def remedy(error: OSError, absent: str) -> str:
    """Return what to do about a file that cannot be read: `absent` only where there is surely none."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many files are open: close some, or raise the limit (`ulimit -n`)"
    # In all other cases the file may be there, and sound.
    return absent if error.errno in _ABSENT else "leave it as it is, and try again"


def check_folder(path: Path, owner: int, cure: str) -> None:
    """Check that a directory belongs to `owner` and is closed to others; `cure` advises the user in the error.

    Raises:
        RunDirError: it belongs to another user, is a link or a file, or is open to others.
        OSError: it does not exist.
    """
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise RunDirError(f"{path}: not a directory; {cure}")
    _check_owner(path, status, owner, cure)
    if status.st_mode & 0o077:
        raise RunDirError(f"{path}: others can enter it (mode {stat.S_IMODE(status.st_mode):04o}); chmod 700 it")


def check_socket(address: str, owner: int) -> None:
    """Check that the socket of an `ipc://` address belongs to `owner` and is closed to others, where it exists.

    Raises:
        RunDirError: it belongs to another user, is no socket, or is open to others.
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
    """Close the socket of an `ipc://` address, just bound, to other users."""
    os.chmod(address.removeprefix("ipc://"), 0o600)


def is_plain(path: Path) -> bool:
    """Say whether a plain file is there, and plain files or none beside it: SQLite opens its companions by name."""
    try:
        if not (stat.S_ISREG(path.lstat().st_mode) and stat.S_ISDIR(path.parent.lstat().st_mode)):
            return False
        beside = (path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal"))
        return all(stat.S_ISREG(each.lstat().st_mode) for each in beside if os.path.lexists(each))
    except OSError:
        return False


def open_plain(path: Path | str) -> BinaryIO:
    """Open a plain file for reading, without following a link or waiting for a pipe or a device.

    Raises:
        OSError: it does not exist, or is no plain file.
    """
    descriptor, _ = _open_plain(path)
    try:
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _open_plain(path: Path | str) -> tuple[int, int]:
    """Return the descriptor of a plain file, and the size of the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as problem:
        raise OSError(None, f"no path ({problem})", str(path)) from problem
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(None, "not a plain file", str(path))
        return descriptor, status.st_size
    except BaseException:
        os.close(descriptor)
        raise


def read(path: Path | str, limit: int = LARGEST_RECORD) -> bytes:
    """Return the content of a record, which is a plain file of at most `limit` bytes.

    A large group has thousands of them: they are read without a buffer of Python's.

    Raises:
        OSError: it does not exist, is no plain file, or is larger.
    """
    descriptor, size = _open_plain(path)
    try:
        # One byte more shows whether the file has grown meanwhile; some file systems return less than there is.
        content = piece = os.read(descriptor, min(size, limit) + 1)
        while piece and len(content) != size and len(content) <= limit:
            piece = os.read(descriptor, limit + 1 - len(content))
            content += piece
    finally:
        os.close(descriptor)
    if len(content) > limit:
        raise OSError(None, "larger than any record", str(path))
    return content


def write(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, in place of any file of its name; links are not followed.

    Raises:
        OSError: the file is incomplete or missing, and the caller removes it.
    """
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb", buffering=0) as file:
        left = memoryview(content)
        while left:
            left = left[file.write(left) or 0 :]


def replace(path: Path, content: bytes) -> None:
    """Replace a file atomically: a reader gets the old content or the new.

    Raises:
        OSError: nothing was written.
    """
    # With the thread's id, two writers do not share one temporary file.
    temporary = path.with_name(f".{path.name}.{threading.get_native_id()}")
    try:
        write(temporary, content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def overwrite(path: Path, content: bytes) -> None:
    """Write a record into its existing file: on a full disk the blocks of that are still there.

    Raises:
        OSError: there is no room for it either, and the old content stays.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size > LARGEST_RECORD:
            raise OSError(None, "larger than any record")
        before = os.pread(descriptor, size, 0)
        # JSON ignores blanks after the record.
        padded = content.ljust(size)
        if os.pwrite(descriptor, padded, 0) < len(padded):
            os.pwrite(descriptor, before, 0)
            os.ftruncate(descriptor, len(before))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


class Hold:
    """A shared lock on a folder by a process that uses it; several processes can hold it, and it ends with its process.

    ddptop does not remove a folder that is held, nor does systemd-tmpfiles (tmpfiles.d(5): it skips a directory with a
    BSD lock, and all below it).  A forked child gives up the holds of its parent.
    """

    _all: ClassVar[set[Hold]] = set()

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self._folder = status.st_dev, status.st_ino
        self._all.add(self)

    @classmethod
    def acquire(cls, path: Path) -> Hold:
        """Return a hold on a folder.

        Raises:
            OSError: it is gone, or another process is about to remove it.
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
        """Say whether no process holds a folder, in any container; False where that cannot be known."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            # Released at once: `acquire` in another process waits for longer than this takes.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            return True
        finally:
            os.close(descriptor)

    def release(self) -> None:
        """Release the folder; a second call does nothing."""
        self._all.discard(self)
        descriptor, self._descriptor = self._descriptor, -1
        with contextlib.suppress(OSError):
            # A script that closes all descriptors to become a daemon may use the number for a file of its own.
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) == self._folder:
                os.close(descriptor)

    @classmethod
    def _release_all(cls) -> None:
        # Closing this copy of a descriptor leaves the parent's lock in place.
        for hold in list(cls._all):
            hold.release()


os.register_at_fork(after_in_child=Hold._release_all)


class Claim:
    """The exclusive right to look after or remove a run: a lock in its folder, which ends with the process."""

    _NAME: Final = "lock"

    def __init__(self, folder: int, lock: int) -> None:
        self._folder = folder
        self._lock = lock

    @classmethod
    def acquire(cls, path: Path, *, to_remove: bool = False) -> Claim | None:
        """Return the claim on the run in this folder, None while another process holds it.

        With `to_remove` the claim is granted on a full disk too, where the file of the lock cannot be made: the caller
        must then check `excludes_all`.

        Raises:
            OSError: the folder is gone, or cannot be written.
        """
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        lock = -1
        try:
            while True:
                flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
                lock = os.open(cls._NAME, flags, 0o600, dir_fd=folder)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # `release` removes the file, maybe between our two calls: a lock on a removed file excludes nobody.
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
        """Say whether the folder at `path` is still the claimed one and no process holds it; then none can any more."""
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(self._folder), path.lstat())
        except OSError:
            return False

    def release(self) -> None:
        """Release the run, by the descriptor of its folder: another run may have its name by now."""
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
