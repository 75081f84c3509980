"""The processes that take the cores of a rank that waits for one; nothing is read as long as no rank is said to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ddptop.agent import wire
from ddptop.agent.observer.judge.intervals import NO_CORE, Accusation, Reason, accusation_of
from ddptop.agent.run import cores, identity
from ddptop.agent.run.cores import Threads
from ddptop.agent.run.identity import Process
from ddptop.agent.run.rundir import Member

_OVER_S: Final = 5.0
"""Seconds over which the CPU of others is measured."""
_RESTS_S: Final = 60.0
"""Seconds from a measurement to the next one: all threads of the machine are read for it."""


class Rivals:
    """Looks who runs on the cores of such ranks of this host; for use from one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Read nothing yet."""
        self._clock = clock
        self._members: dict[int, Process] = {}
        self._before: Threads = {}
        self._at = self._due = 0.0
        """When the threads were read last, and when they are to be read again."""
        self._ranks: frozenset[int] = frozenset()
        """Those that waited for a core at the last turn."""
        self._found: Mapping[int, Reason] = {}
        """By rank."""

    def meet(self, member: Member) -> None:
        """Take note of a rank of this host."""
        self._members[member.rank] = member.process

    def turn(self, verdicts: Iterable[wire.Verdict]) -> Mapping[Accusation, Reason]:
        """Look, where a rank waits for a core; return the rivals that were seen as the reason for its verdict."""
        accused = {
            each.rank: accusation_of(each)
            for each in verdicts
            if each.kind == NO_CORE and each.rank is not None and each.rank in self._members
        }
        known, self._ranks = self._ranks, frozenset(accused)
        if not accused:
            self._before, self._found = {}, {}
            return {}
        now = self._clock()
        if not self._ranks <= known:
            self._before, self._due = {}, now
        if now >= self._due:
            self._look(now)
        return {accused[rank]: reason for rank, reason in self._found.items() if rank in accused}

    def _look(self, now: float) -> None:
        threads = cores.threads()
        if not self._before:
            self._before, self._at, self._due = threads, now, now + _OVER_S
            return
        before, seconds = self._before, now - self._at
        self._before, self._due = {}, now + _RESTS_S
        found = {rank: self._remark(self._members[rank], before, threads, seconds) for rank in self._ranks}
        self._found = {rank: Reason(text) for rank, text in found.items() if text}

    def _remark(self, process: Process, before: Threads, after: Threads, seconds: float) -> str:
        try:
            own = os.sched_getaffinity(process.pid)
        except OSError:
            return ""
        pids = cores.rivals(process.pid, own, before, after, seconds)
        return cores.remark(pids, own) if pids and identity.is_alive(process) else ""
