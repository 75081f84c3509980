"""Cores, the processes that run on them, and the time that these take, as /proc shows them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, TypeAlias

from ddptop.agent.run.identity import fields_of
from ddptop.agent.text import plural

LEAST: Final = 0.05
"""Part of a core from which on a process is a rival."""
_MOST_NAMED: Final = 4
_PROCESSOR: Final = 36
"""Place of a thread's last core among the fields after the name, by proc(5)."""


class Used(NamedTuple):
    """CPU seconds of a thread, and its last core."""

    cpu_s: float
    core: int


Threads: TypeAlias = Mapping[tuple[int, int], Used]
"""By the pids of process and thread."""


def threads() -> Threads:
    """Return all threads of the machine that can be read."""
    found: dict[tuple[int, int], Used] = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            for thread in os.listdir(f"/proc/{name}/task"):
                fields = fields_of(f"{name}/task/{thread}")
                found[int(name), int(thread)] = Used(_cpu_s(fields), int(fields[_PROCESSOR]))
        except (OSError, ValueError, IndexError):
            continue
    return found


def _cpu_s(fields: list[bytes]) -> float:
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> list[int]:
    """Return the children of the main thread of a process, as data workers are; empty where they cannot be read."""
    # One small file instead of all of /proc.
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb", buffering=0) as file:
            return [int(each) for each in file.read().split()]
    except OSError:
        return []


class Usage:
    """The CPU time of a process and its children, from one look to the next."""

    def __init__(self, pid: int) -> None:
        """Look for the first time.

        Raises:
            OSError: the process cannot be read.
        """
        self._pid = pid
        self._at, self._cpu_s = 0.0, dict[int, float]()
        self.percent()

    @property
    def children(self) -> int:
        """Children of its main thread at the last look."""
        return len(self._cpu_s) - 1

    def percent(self) -> float:
        """Return the CPU that they took since the last look, a child from its second look on; 100 is one core.

        Raises:
            OSError: the process cannot be read.
        """
        now, used = time.monotonic(), {self._pid: _cpu_s(fields_of(self._pid))}
        for child in children_of(self._pid):
            with contextlib.suppress(OSError):
                used[child] = _cpu_s(fields_of(child))
        spent = sum(max(0.0, cpu_s - self._cpu_s.get(pid, cpu_s)) for pid, cpu_s in used.items())
        passed, self._at, self._cpu_s = now - self._at, now, used
        return 100 * spent / passed if passed > 0 else 0.0


def core_of(thread: int) -> int:
    """Return the core on which a thread of this process has run last.

    Raises:
        OSError, ValueError, IndexError: it cannot be read.
    """
    return int(fields_of(f"self/task/{thread}")[_PROCESSOR])


def rivals(pid: int, cores: Collection[int], before: Threads, after: Threads, seconds: float) -> list[int]:
    """Return the other processes that have run on the cores of one, those that ran most first.

    Args:
        pid: of the process.
        cores: on which it may run.
        before: all threads.
        after: the same, so many seconds later.
        seconds: the time between.
    """
    used: dict[int, float] = {}
    for key, (cpu_s, core) in after.items():
        known = before.get(key)
        if key[0] != pid and known is not None and {core, known.core} & set(cores):
            used[key[0]] = used.get(key[0], 0.0) + cpu_s - known.cpu_s
    return sorted((each for each in used if used[each] >= LEAST * seconds), key=lambda each: -used[each])


def remark(pids: list[int], cores: Collection[int]) -> str:
    """Return the rivals in a few words: `another process on core 3 (pid 4242)`; empty where there are none."""
    if not pids:
        return ""
    numbers = ", ".join(map(str, pids[:_MOST_NAMED])) + (", …" if len(pids) > _MOST_NAMED else "")
    where = f"core {min(cores)}" if len(cores) == 1 else f"its {plural(len(cores), 'core')}"
    if len(pids) == 1:
        return f"another process on {where} (pid {numbers})"
    return f"other processes on {where} (pids {numbers})"
