"""The processes that take the cores of a rank that waits for one; nothing is read as long as no rank is said to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from ddptop.agent import wire
from ddptop.agent.observer.judge.intervals import NO_CORE
from ddptop.agent.run import identity
from ddptop.agent.run.identity import Process
from ddptop.agent.run.rundir import Member
from ddptop.agent.text import plural

LEAST: Final = 0.05
"""Part of a core from which on a process is a rival."""
_MOST_NAMED: Final = 4
_OVER_S: Final = 5.0
"""Seconds over which the CPU of others is measured."""
_RESTS_S: Final = 60.0
"""Seconds from a measurement to the next one: all threads of the machine are read for it."""
_PROC: Final = Path("/proc")
_PROCESSOR: Final = 36
"""Place of a thread's last core among the fields after the name, by proc(5)."""


class _Used(NamedTuple):
    """CPU seconds of a thread, and its last core."""

    cpu_s: float
    core: int


_Threads: TypeAlias = Mapping[tuple[int, int], _Used]
"""By the pids of process and thread."""


class Rivals:
    """Looks who runs on the cores of such ranks of this host; for use from one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Read nothing yet."""
        self._clock = clock
        self._members: dict[int, Process] = {}
        self._before: _Threads = {}
        self._at = self._due = 0.0
        """When the threads were read last, and when they are to be read again."""
        self._ranks: frozenset[int] = frozenset()
        """Those that waited for a core at the last turn."""
        self._remarks: Mapping[int, str] = {}

    def meet(self, member: Member) -> None:
        """Take note of a rank of this host."""
        self._members[member.rank] = member.process

    def turn(self, verdicts: Iterable[wire.Verdict]) -> Mapping[int, str]:
        """Look, where a rank waits for a core; return a remark for each such rank whose rivals were seen."""
        known, self._ranks = (
            self._ranks,
            frozenset(
                verdict.rank for verdict in verdicts if verdict.kind == NO_CORE and verdict.rank in self._members
            ),
        )
        if not self._ranks:
            self._before, self._remarks = {}, {}
            return self._remarks
        now = self._clock()
        if not self._ranks <= known:
            self._before, self._due = {}, now
        if now < self._due:
            return self._remarks
        threads = _threads()
        if not self._before:
            self._before, self._at, self._due = threads, now, now + _OVER_S
            return self._remarks
        before, seconds = self._before, now - self._at
        self._before, self._due = {}, now + _RESTS_S
        found = {rank: self._remark(self._members[rank], before, threads, seconds) for rank in self._ranks}
        self._remarks = {rank: text for rank, text in found.items() if text}
        return self._remarks

    def _remark(self, process: Process, before: _Threads, after: _Threads, seconds: float) -> str:
        try:
            cores = os.sched_getaffinity(process.pid)
        except OSError:
            return ""
        used: dict[int, float] = {}
        for key, (cpu_s, core) in after.items():
            known = before.get(key)
            if key[0] != process.pid and known is not None and {core, known.core} & cores:
                used[key[0]] = used.get(key[0], 0.0) + cpu_s - known.cpu_s
        pids = sorted((pid for pid in used if used[pid] >= LEAST * seconds), key=lambda pid: -used[pid])
        if not pids or not identity.is_alive(process):
            return ""
        numbers = ", ".join(str(pid) for pid in pids[:_MOST_NAMED]) + (", …" if len(pids) > _MOST_NAMED else "")
        where = f"core {min(cores)}" if len(cores) == 1 else f"its {plural(len(cores), 'core')}"
        if len(pids) == 1:
            return f"another process on {where} (pid {numbers})"
        return f"other processes on {where} (pids {numbers})"


def _threads() -> _Threads:
    ticks = os.sysconf("SC_CLK_TCK")
    found: dict[tuple[int, int], _Used] = {}
    for name in os.listdir(_PROC):
        if not name.isdecimal():
            continue
        try:
            for thread in os.listdir(_PROC / name / "task"):
                fields = (_PROC / name / "task" / thread / "stat").read_bytes().rpartition(b")")[2].split()
                cpu_s = (int(fields[11]) + int(fields[12])) / ticks
                found[int(name), int(thread)] = _Used(cpu_s, int(fields[_PROCESSOR]))
        except (OSError, ValueError, IndexError):
            continue
    return found
