"""The time at which the process of each rank ended: their order tells the first cause from its consequences.

Ranks are torchrun's children, so that the observer cannot wait for them; a pidfd becomes
readable at the moment its process ends.  Without pidfds the process table is read instead.
"""

from __future__ import annotations

import os
import select
import time

from ddptop.agent.run.rundir import Process, is_alive


class Exits:
    """Watches the processes of ranks and notes when each one ended."""

    def __init__(self) -> None:
        self.at_ns: dict[int, int] = {}
        """By rank, the wall-clock time at which its current process ended."""
        self._watched: dict[int, tuple[Process, int | None]] = {}

    def watch(self, rank: int, process: Process) -> None:
        """Begin to watch a rank; its process after a restart of the group replaces the old one."""
        known = self._watched.get(rank)
        if known is not None:
            if known[0] == process:
                return
            self._forget(rank)
        self._watched[rank] = (process, _handle(process))

    def handles(self) -> list[int]:
        """Return the file descriptors that become readable when a rank dies."""
        return [handle for rank, (_, handle) in self._watched.items() if handle is not None and rank not in self.at_ns]

    def alive(self) -> list[int]:
        """Return the watched ranks whose end was not noted."""
        return [rank for rank in self._watched if rank not in self.at_ns]

    def read(self) -> list[int]:
        """Note the processes that have ended since the last call and return their ranks."""
        poll = select.poll()
        for watched in self.handles():
            poll.register(watched, select.POLLIN)
        ended = {ready for ready, _ in poll.poll(0)}
        # One look has one time: the order of deaths within it is not known.
        now = time.time_ns()
        fresh = []
        for rank in self.alive():
            process, handle = self._watched[rank]
            if is_alive(process) if handle is None else handle not in ended:
                continue
            self.at_ns[rank] = now
            fresh.append(rank)
            self._watched[rank] = (process, None)
            if handle is not None:
                os.close(handle)
        return fresh

    def close(self) -> None:
        """Stop watching all processes."""
        for rank in list(self._watched):
            self._forget(rank)

    def _forget(self, rank: int) -> None:
        _, handle = self._watched.pop(rank)
        self.at_ns.pop(rank, None)
        if handle is not None:
            os.close(handle)


def _handle(process: Process) -> int | None:
    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        return None
    if is_alive(process):
        return handle
    os.close(handle)
    return None
