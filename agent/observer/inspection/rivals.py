"""The processes that take the cores of a rank that waits for one; nothing is read as long as no rank is said to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ddptop.agent import wire
from ddptop.agent.run import identity
from ddptop.agent.run.identity import Process
from ddptop.agent.run.rundir import Member
from ddptop.agent.text import plural

KIND: Final = "no_core"
LEAST: Final = 0.05
"""Part of a core from which on a process is a rival."""
_MOST_NAMED: Final = 4
_EVERY_S: Final = 5.0
"""Seconds over which the CPU of others is measured."""
_PROC: Final = Path("/proc")
_PROCESSOR: Final = 36
"""Place of a thread's last core among the fields after the name, by proc(5)."""


class _Used(NamedTuple):
    """CPU seconds of a thread, and its last core."""

    cpu_s: float
    core: int


class Rivals:
    """Looks who runs on the cores of such ranks of this host; for use from one thread."""

    def __init__(self, tell: Callable[[Mapping[int, str]], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare; `tell` is given a remark for each such rank."""
        self._tell = tell
        self._clock = clock
        self._members: dict[int, Process] = {}
        self._before: dict[tuple[int, int], _Used] = {}
        self._at = 0.0

    def meet(self, member: Member) -> None:
        """Take note of a rank of this host."""
        self._members[member.rank] = member.process

    def turn(self, verdicts: Iterable[wire.Verdict]) -> None:
        """Look, where a rank waits for a core."""
        ranks = {verdict.rank for verdict in verdicts if verdict.kind == KIND and verdict.rank in self._members}
        if not ranks:
            if self._before:
                self._before = {}
                self._tell({})
            return
        now = self._clock()
        if self._before and now - self._at < _EVERY_S:
            return
        before, seconds = self._before, now - self._at
        self._before, self._at = _threads(), now
        if before:
            found = {rank: self._remark(self._members[rank], before, seconds) for rank in ranks if rank is not None}
            self._tell({rank: text for rank, text in found.items() if text})

    def _remark(self, process: Process, before: Mapping[tuple[int, int], _Used], seconds: float) -> str:
        try:
            cores = os.sched_getaffinity(process.pid)
        except OSError:
            return ""
        used: dict[int, float] = {}
        for key, (cpu_s, core) in self._before.items():
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


def _threads() -> dict[tuple[int, int], _Used]:
    ticks, found = os.sysconf("SC_CLK_TCK"), {}
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
