"""Which process is meant: a number, the time it started and the boot it belongs to, and a table of all that live.

A pid alone is reused, by the same machine within hours and by the next boot within seconds.
Knows nothing of runs; imports psutil only where there is no /proc.
"""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
import psutil

_PROC: Final = Path("/proc")
_DEAD: Final = frozenset("ZXx")
_STATUS: Final = {
    "R": psutil.STATUS_RUNNING,
    "S": psutil.STATUS_SLEEPING,
    "D": psutil.STATUS_DISK_SLEEP,
    "T": psutil.STATUS_STOPPED,
    "t": psutil.STATUS_TRACING_STOP,
    "I": psutil.STATUS_IDLE,
}


class Process(msgspec.Struct, frozen=True):
    """A process that cannot be mistaken for a later one of the same number."""

    pid: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    started: float
    """Seconds, from the start of the machine on Linux, so that setting the clock changes nothing."""
    boot: str = ""
    """Which start of the machine that was, where the system tells."""


@dataclass(frozen=True, slots=True)
class Row:
    """A live process and where it stands."""

    process: Process
    parent: int
    session: int
    status: str
    """As psutil spells it."""
    uid: int


@functools.cache
def boot() -> str:
    """Return the name of this start of the machine, empty where the system has none."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def identify(pid: int) -> Process | None:
    """Return the identity of the live process `pid`, or None when there is none (a zombie is none)."""
    row = _row(pid)
    return None if row is None else row.process


def is_alive(process: Process | None) -> bool:
    """Say whether exactly this process still runs."""
    if process is None:
        return False
    now = identify(process.pid)
    if now is None or (process.boot and process.boot != now.boot):
        return False
    # Start times have a resolution of 10 ms; a number is not reused within that.
    return abs(now.started - process.started) < 0.05


def table() -> dict[int, Row]:
    """Return all live processes by number; a zombie is none: it holds no memory and takes no signal."""
    return {pid: row for pid in psutil.pids() if (row := _row(pid)) is not None}


def _row(pid: int) -> Row | None:
    if sys.platform != "linux":
        return _row_by_psutil(pid)
    try:
        # The name in parentheses may hold anything; what follows it is state, parent, group, session, …; start is 20th.
        with open(f"{_PROC}/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read().rpartition(b")")[2].split()
        uid = os.stat(f"{_PROC}/{pid}").st_uid
    except OSError:
        return None
    state = fields[0].decode()
    if state in _DEAD:
        return None
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    identity = Process(pid, started, boot())
    return Row(identity, int(fields[1]), int(fields[3]), _STATUS.get(state, state), uid)


def _row_by_psutil(pid: int) -> Row | None:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            status = process.status()
            if status == psutil.STATUS_ZOMBIE:
                return None
            identity = Process(pid, process.create_time())
            return Row(identity, process.ppid(), os.getsid(pid), status, process.uids().real)
    except (psutil.Error, OSError):
        return None


def carries(pid: int, name: str, value: str) -> bool:
    """Say whether the environment that a process was started with holds `name=value`."""
    try:
        if sys.platform == "linux":
            return f"{name}={value}".encode() in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        return psutil.Process(pid).environ().get(name) == value
    except (psutil.Error, OSError):
        return False


def command(pid: int) -> tuple[str, ...]:
    """Return the command line of a process, nothing where it cannot be read."""
    try:
        return tuple(psutil.Process(pid).cmdline())
    except (psutil.Error, OSError):
        return ()
