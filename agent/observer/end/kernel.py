"""Out-of-memory kills as the kernel counts them, and its log, where this user may read it.

A rank that gets SIGKILL reports nothing itself.  The counters are those of the rank's control group (v2
`memory.events`, v1 `memory.oom_control`) and of the whole machine (`/proc/vmstat`); where the kernel's log may be
read, its line on the process is quoted.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from ddptop.agent.text import clean_line, size

_CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
_PROC: Final = Path("/proc")
LOG: Final = Path("/dev/kmsg")
_LARGEST: Final = 1 << 16
_MACHINE: Final = "/proc/vmstat"
RECENT_S: Final = 20.0
"""Seconds for which a count may be compared with a later one: what was killed long before has nothing to do with it."""
_UNLIMITED: Final = 1 << 60
"""A limit from which on it is none: v1 has no word for that."""


class Found(NamedTuple):
    """The kernel's evidence on the end of a process by SIGKILL."""

    out_of_memory: bool | None
    """None where it counts nothing."""
    text: str
    """On what that rests, one line; empty where nothing was to be read."""


class _Counter(NamedTuple):
    path: Path
    name: str
    """The words for people: `memory.events of its control group /job`."""


class MemoryKills:
    """Compares the kernel's counters shortly before the end of each rank and after it."""

    def __init__(
        self,
        groups: Path = _CONTROL_GROUPS,
        proc: Path = _PROC,
        log: Path = LOG,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._groups, self._proc, self._log = groups, proc, log
        self._clock = clock
        self._counters: dict[int, tuple[_Counter, ...]] = {}
        self._before: dict[Path, int] = {}
        """The value of each counter, `RECENT_S` to twice as long ago."""
        self._last: dict[Path, int] = {}
        self._read_at = clock()

    def watch(self, rank: int, pid: int) -> None:
        """Read the counters for a rank that has just begun."""
        counters = (*self._of_group(pid), _Counter(self._proc / "vmstat", _MACHINE))
        self._counters[rank] = counters
        for counter in counters:
            if (count := _count(counter.path)) is not None:
                self._before.setdefault(counter.path, count)

    def turn(self) -> None:
        """Read the counters where that is due; to be called from time to time."""
        if self._clock() - self._read_at >= RECENT_S:
            self._read_at = self._clock()
            read = {path: _count(path) for path in self._before}
            self._before |= self._last
            self._last = {path: count for path, count in read.items() if count is not None}

    def forget(self) -> None:
        """Forget the ranks and the counters, which are read anew for the next ones."""
        self._counters.clear()
        self._before.clear()
        self._last.clear()

    def found(self, rank: int, pid: int) -> Found:
        """Return the evidence of the counters on the end of a rank that got SIGKILL."""
        read: list[str] = []
        for counter in self._counters.get(rank, ()):
            before, now = self._before.get(counter.path), _count(counter.path)
            if before is None or now is None:
                continue
            if read and counter.name == _MACHINE:
                # A kill in its own group would have been counted there: that one was of somebody else's process.
                break
            if now > before:
                limit = _limit(counter.path.parent)
                bound = f", limit {size(limit)}" if limit is not None else ""
                line = killed(pid, self._log)
                said = f'; kernel log: "{line}"' if line else ""
                return Found(True, f"{counter.name} counts {now - before} out-of-memory kill more{bound}{said}")
            read.append(counter.name)
        if not read:
            return Found(None, "")
        return Found(False, f"no out-of-memory kill by the kernel ({' and '.join(read)})")

    def _of_group(self, pid: int) -> list[_Counter]:
        try:
            lines = (self._proc / str(pid) / "cgroup").read_text(errors="replace")[:_LARGEST].splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number == "0" and not controllers:
                roots, name = [self._groups, self._groups / "unified"], "memory.events"
            elif "memory" in controllers.split(","):
                roots, name = [self._groups / "memory"], "memory.oom_control"
            else:
                continue
            # In a container the path may be that of the host, and the group the root of what is seen.
            places = (root / inner for root in roots for inner in (path.lstrip("/"), ""))
            file = next((each / name for each in places if _count(each / name) is not None), None)
            if file is not None and ".." not in file.parts:
                found.append(_Counter(file, f"{name} of its control group {clean_line(path, 100)}"))
        return found


def _count(path: Path) -> int | None:
    try:
        with path.open("rb") as file:
            found = re.search(rb"(?m)^oom_kill (\d{1,18})$", file.read(_LARGEST))
    except OSError:
        return None
    return None if found is None else int(found[1])


def _limit(folder: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            text = (folder / name).read_text(errors="replace").strip()
        except OSError:
            continue
        if text.isdecimal() and int(text[:20]) < _UNLIMITED:
            return int(text)
    return None


_MOST_RECORDS: Final = 20_000
"""Records that are read at most."""
_LONGEST: Final = 160
ERROR_RECENT_S: Final = 120.0
"""An error of a GPU that names no process has to do with the end of one if it is no older than this."""


def killed(pid: int, log: Path = LOG) -> str:
    """Return the newest line on a process that was killed for memory; empty where there is none."""
    return _newest(log, re.compile(rf"[Kk]ill(?:ed)? process {pid}\b"))


def device_error(pid: int, now_s: float, log: Path = LOG) -> str:
    """Return the newest line of NVIDIA's driver (Xid) on a process, or a recent one that names none; empty without any.

    Args:
        pid: its number, which in a container the kernel may not know.
        now_s: the time since the machine's start, which counts suspended time or not: the log does not.
        log: where the kernel writes.
    """
    own = _newest(log, re.compile(rf"NVRM: Xid \(.{{1,80}}\): \d{{1,4}}, pid='?{pid}\b"))
    return own or _newest(log, re.compile(r"NVRM: Xid \(.{1,80}\): \d{1,4},(?! pid='?\d)"), now_s - ERROR_RECENT_S)


def _newest(log: Path, wanted: re.Pattern[str], since_s: float = 0.0) -> str:
    found = ""
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        for _ in range(_MOST_RECORDS):
            try:
                record = os.read(descriptor, 8192)
            except BrokenPipeError:
                # Older records were overwritten while these were read.
                continue
            if not record:
                break
            head, _, text = record.decode(errors="replace").partition(";")
            line = (text or head).partition("\n")[0]
            if wanted.search(line) and _seconds(head) >= since_s:
                found = clean_line(line, _LONGEST)
    except OSError:
        return found  # its end, or a kernel that does not let this user read it
    finally:
        os.close(descriptor)
    return found


def _seconds(head: str) -> float:
    """Return the time of a record, `level,number,microseconds,flags`; 0 where it has none."""
    parts = head.split(",")
    return int(parts[2]) / 1e6 if len(parts) > 2 and parts[2].isdecimal() and len(parts[2]) < 20 else 0.0
