"""The time at which the process of each rank ended, and its exit status, which show the first cause.

Ranks are torchrun's children, so that the observer cannot wait for them; a pidfd becomes
readable at the moment its process ends.  Without pidfds the process table is read instead.  The status is read from
the zombie, or from the pidfd (Linux 6.15) once the parent has taken the zombie away; otherwise it is not known.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import time
from typing import Final

from ddptop.agent.run.identity import fields_of
from ddptop.agent.run.rundir import Process, is_alive

_GET_INFO: Final = 0xC040FF0B
"""PIDFD_GET_INFO of linux/pidfd.h, with the size of the first version of `struct pidfd_info`."""
_INFO_BYTES: Final = 64
_EXIT: Final = 1 << 3
"""PIDFD_INFO_EXIT: the field is the wait status of a process whose parent has read it."""


class Exits:
    """Watches the processes of ranks and notes when each one ended; watches their leader as well."""

    def __init__(self) -> None:
        self.at_ns: dict[int, int] = {}
        """By rank, the wall-clock time at which its current process ended."""
        self.status: dict[int, int] = {}
        """By rank, the exit code of that process, negative for a signal; of those of which the system has given it."""
        self._watched: dict[int, tuple[Process, int | None]] = {}
        self._unseen: set[int] = set()
        """Ranks without a pidfd that have not ended."""
        self._leader: tuple[Process, int | None] | None = None
        # Of a thousand pidfds it takes as long to ask as of one.
        self._ready: select.epoll | None = None
        # Where there is no descriptor left, the ends are looked for.
        with contextlib.suppress(OSError):
            self._ready = select.epoll()

    def watch(self, rank: int, process: Process) -> None:
        """Begin to watch a rank; its process after a restart of the group replaces the old one."""
        known = self._watched.get(rank)
        if known is not None:
            if known[0] == process:
                return
            self._forget(rank)
        handle = self._handle(process)
        self._watched[rank] = (process, handle)
        if handle is None:
            self._unseen.add(rank)

    def watch_leader(self, process: Process | None) -> None:
        """Let the end of the process that starts the ranks be noticed, too; None where there is none."""
        if process is None:
            self._forget_leader()
        elif self._leader is None or self._leader[0] != process:
            self._forget_leader()
            self._leader = (process, self._handle(process))

    @property
    def handles(self) -> list[int]:
        """The file descriptors of which one is readable when a rank or the leader has ended."""
        return [] if self._ready is None else [self._ready.fileno()]

    @property
    def shows_all(self) -> bool:
        """Say whether `handles` show the end of each process that is watched and lives, so that nobody has to look."""
        return not self._unseen and (self._leader is None or self._leader[1] is not None)

    def alive(self) -> list[int]:
        """Return the watched ranks whose end was not noted."""
        return [rank for rank in self._watched if rank not in self.at_ns]

    def read(self) -> list[int]:
        """Note the processes that have ended since the last call and return their ranks."""
        ended = set() if self._ready is None else {handle for handle, _ in self._ready.poll(0)}
        if not ended and not self._unseen:
            return []
        # One look has one time: the order of deaths within it is not known.
        now = time.time_ns()
        fresh = []
        for rank in self.alive():
            process, handle = self._watched[rank]
            if is_alive(process) if handle is None else handle not in ended:
                continue
            self.at_ns[rank] = now
            if handle is not None and (status := exit_status(process.pid, handle)) is not None:
                self.status[rank] = status
            fresh.append(rank)
            self._watched[rank] = (process, None)
            self._unseen.discard(rank)
            self._close(handle)
        if self._leader is not None and self._leader[1] in ended:
            self._close(self._leader[1])
            self._leader = (self._leader[0], None)
        return fresh

    def forget(self) -> None:
        """Stop watching the ranks."""
        for rank in list(self._watched):
            self._forget(rank)

    def close(self) -> None:
        """Stop watching all processes, for good."""
        self.forget()
        self._forget_leader()
        if self._ready is not None:
            self._ready.close()
            self._ready = None

    def _forget(self, rank: int) -> None:
        _, handle = self._watched.pop(rank)
        self.at_ns.pop(rank, None)
        self.status.pop(rank, None)
        self._unseen.discard(rank)
        self._close(handle)

    def _forget_leader(self) -> None:
        if self._leader is not None:
            self._close(self._leader[1])
            self._leader = None

    def _handle(self, process: Process) -> int | None:
        if self._ready is None:
            return None
        try:
            handle = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            return None
        if not is_alive(process):
            os.close(handle)
            return None
        try:
            self._ready.register(handle, select.EPOLLIN)
        except OSError:
            os.close(handle)
            return None
        return handle

    def _close(self, handle: int | None) -> None:
        if handle is not None:
            if self._ready is not None:
                # A copy in a child that is just being started would keep it in there.
                self._ready.unregister(handle)
            os.close(handle)


def exit_status(pid: int, handle: int) -> int | None:
    """Return the exit code of a process that has ended, negative for a signal; None where the system does not give it.

    Args:
        pid: its number.
        handle: its pidfd, which is readable: as long as the process is a zombie, nobody else has its number.
    """
    status = _of_zombie(pid)
    if status is None:
        status = _of_handle(handle)
    return None if status is None else os.waitstatus_to_exitcode(status)


def _of_zombie(pid: int) -> int | None:
    try:
        fields = fields_of(pid)
    except OSError:
        return None
    # proc(5): field 52 is the status, for its own user; a process that is no zombie has none yet.
    if len(fields) < 50 or fields[0] not in (b"Z", b"X"):
        return None
    return int(fields[49])


def _of_handle(handle: int) -> int | None:
    info = bytearray(_INFO_BYTES)
    struct.pack_into("=Q", info, 0, _EXIT)
    try:
        fcntl.ioctl(handle, _GET_INFO, info)
    except OSError:
        return None
    (mask,) = struct.unpack_from("=Q", info, 0)
    return int(struct.unpack_from("=i", info, 60)[0]) if mask & _EXIT else None


_PR_SET_CHILD_SUBREAPER: Final = 36
"""From linux/prctl.h; see prctl(2)."""


def adopt_orphans() -> bool:
    """Become the parent of every descendant that loses its own (a "child subreaper"), to read its exit status.

    Return whether that was granted; otherwise only marker and session show which run an orphan belongs to.
    """
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def reap(spared: int | None) -> None:
    """Read the exit status of adopted children that have ended, up to the first that is `spared` (torchrun's)."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == spared:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)
