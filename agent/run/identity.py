"""The identity of a process (pid, start time, boot and pid namespace), signals to it, and the table of all processes.

A pid alone is reused, by the same machine within hours and by the next boot within seconds, and
means another process in each container.
This module knows nothing of runs; it reads /proc itself, faster than psutil, whose import alone takes longer than most
verbs need for their answer, and returns psutil's words.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec

ELSEWHERE: Final = "lives in another pid namespace (container): not visible from here"
"""The description of a process or run whose state cannot be known here."""

_PROC: Final = Path("/proc")
_DEAD: Final = frozenset("ZXx")
# In psutil's spelling.
STATUS_DISK_SLEEP: Final = "disk-sleep"
STATUS_STOPPED: Final = "stopped"
STATUS_TRACING_STOP: Final = "tracing-stop"
STOPPED: Final = frozenset({STATUS_STOPPED, STATUS_TRACING_STOP})
"""Status of a process that is stopped, by SIGSTOP or by a debugger."""
_STATUS: Final = {
    "R": "running",
    "S": "sleeping",
    "D": STATUS_DISK_SLEEP,
    "T": STATUS_STOPPED,
    "t": STATUS_TRACING_STOP,
    "I": "idle",
}


class Process(msgspec.Struct, frozen=True):
    """The identity of a process, which no later process with the same pid shares."""

    pid: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    started: float
    """Start time in seconds since the start of the machine, so that setting the clock changes nothing."""
    boot: str = ""
    """Identifier of that start of the machine, empty where the system has none."""
    namespace: str = ""
    """Inode of the pid namespace in which `pid` was read; empty in records of older versions."""


@dataclass(frozen=True, slots=True)
class Row:
    """A living process: its identity, relatives and status."""

    process: Process
    parent: int
    session: int
    status: str
    """In psutil's spelling."""
    uid: int
    cpu_s: float = 0.0
    """CPU time so far, without that of its children."""
    terminal: int = 0
    """Number of its controlling terminal, 0 without one."""


@functools.cache
def boot() -> str:
    """Return the name of this start of the machine, empty where the system has none."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@functools.cache
def _namespace_of(reader: int) -> str:
    # Cached for each reading process: a child forked after an `unshare` is in another namespace.
    return namespace_of(reader)


def namespace_of(pid: int) -> str:
    """Return the pid namespace of a process, empty where it cannot be read."""
    return link(pid, "ns/pid").partition("[")[2].rstrip("]")


def namespace() -> str:
    """Return the pid namespace of this process, empty where the system has none."""
    return _namespace_of(os.getpid())


def identify(pid: int) -> Process | None:
    """Return the identity of the living process `pid`, None where there is none; a zombie does not count."""
    row = _row(pid)
    return None if row is None else row.process


def is_alive(process: Process | None) -> bool:
    """Say whether exactly this process lives and is visible from here; only then may it get a signal."""
    return process is not None and look(process) is not None


def look(process: Process) -> Row | None:
    """Return the present row of exactly this process, None where it is gone or not visible from here."""
    row = None if is_elsewhere(process) else _row(process.pid)
    if row is None or (process.boot and process.boot != row.process.boot):
        return None
    # Start times have a resolution of 10 ms; a pid is not reused within that time.
    return row if abs(row.process.started - process.started) < 0.05 else None


def is_elsewhere(process: Process | None) -> bool:
    """Say whether a process belongs to another pid namespace, so that nobody here knows whether it lives."""
    return (
        process is not None
        and process.boot in ("", boot())
        and "" not in (process.namespace, namespace())
        and process.namespace != namespace()
    )


def may_live(process: Process | None) -> bool:
    """Say whether a process lives, or may live in another pid namespace: it must not be treated as dead."""
    return is_alive(process) or is_elsewhere(process)


def is_stopped(process: Process | None) -> bool:
    """Say whether a process lives and is stopped, by SIGSTOP or by a debugger."""
    row = None if process is None else look(process)
    return row is not None and row.status in STOPPED


def send(process: Process, number: int) -> bool:
    """Send a signal to exactly this process; False when it is gone, forbidden, or its pid is reused."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):
        # Without pidfds another process may get the pid between check and signal.
        return is_alive(process) and _kill(process.pid, number)
    try:
        # The pidfd refers to one process for good; the check comes after it, so that it holds for the signal.
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(handle)
    return True


def wake(process: Process) -> None:
    """Let a process go on that is stopped."""
    if is_stopped(process):
        send(process, signal.SIGCONT)


def table() -> dict[int, Row]:
    """Return all living processes by pid, without zombies: those hold no memory and react to no signal."""
    pids = (int(name) for name in os.listdir(_PROC) if name.isdecimal())
    return {pid: row for pid in pids if (row := _row(pid)) is not None}


def fields_of(process: int | str) -> list[bytes]:
    """Return the fields after the name of a process, or of a thread `PID/task/TID`, by proc(5).

    Raises:
        OSError: they cannot be read.
    """
    with open(f"{_PROC}/{process}/stat", "rb", buffering=0) as file:
        # The name in parentheses may hold anything; after it come state, parent, group, session, …
        return file.read().rpartition(b")")[2].split()


def _row(pid: int) -> Row | None:
    try:
        fields = fields_of(pid)
        uid = os.stat(f"{_PROC}/{pid}").st_uid
    except OSError:
        return None
    state = fields[0].decode()
    if state in _DEAD:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    identity = Process(pid, int(fields[19]) / ticks, boot(), namespace())
    cpu_s = (int(fields[11]) + int(fields[12])) / ticks
    return Row(identity, int(fields[1]), int(fields[3]), _STATUS.get(state, state), uid, cpu_s, int(fields[4]))


def link(pid: int, name: str) -> str:
    """Return the target of a link in the folder of a process in /proc, empty where it cannot be read."""
    try:
        return os.readlink(f"{_PROC}/{pid}/{name}")
    except OSError:
        return ""


def began_at(process: Process) -> float:
    """Return when a process was started, in seconds since the epoch as the clock is now."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + process.started


def carries(pid: int, name: str, value: str) -> bool:
    """Say whether the environment with which a process was started holds `name=value`."""
    return variable(pid, name) == value


def variable(pid: int, name: str) -> str:
    """Return a variable of the environment with which a process was started, empty where that cannot be read."""
    return environment(pid).get(name, "")


def environment(pid: int) -> dict[str, str]:
    """Return the environment with which a process was started, empty where that cannot be read."""
    try:
        held = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    # Of a name that is there twice, the first counts.
    pairs = (each.partition(b"=") for each in reversed(held))
    return {os.fsdecode(name): os.fsdecode(value) for name, sign, value in pairs if sign}


def command(pid: int) -> tuple[str, ...]:
    """Return the command line of a process, empty where it cannot be read; a title that it has given itself is one
    word.
    """
    try:
        content = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(map(os.fsdecode, content.removesuffix(b"\0").split(b"\0"))) if content else ()


def _kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True
