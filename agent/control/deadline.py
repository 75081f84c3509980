"""The deadline of a command: a process that reads the command later refuses it, because its sender has given up.

The clock runs from the start of the machine, so that all its processes share it and
nobody can set it; on Linux the time in which the machine sleeps counts.  A command without a deadline, as older
onlookers send it, is never refused for its age.
"""

from __future__ import annotations

import time
from typing import Final, TypeVar

import msgspec

from ddptop.agent import wire

_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_C = TypeVar("_C", bound=wire.Command)


def now_ns() -> int:
    """Return the nanoseconds since the machine was started."""
    return time.clock_gettime_ns(_CLOCK)


def limited(command: _C, seconds: float) -> _C:
    """Return a command with a deadline in so many seconds; a command that needs none is returned as it is."""
    if not isinstance(command, wire.Expiring) or (isinstance(command, wire.Resume) and command.serial):
        # A resume with a serial announces a decision, and decisions have no deadline.
        return command
    now = now_ns()
    return msgspec.structs.replace(command, asked_ns=now, until_ns=now + int(seconds * 1e9))


def lateness(command: wire.Command) -> str | None:
    """Return one line for the sender and the events where a command came too late, None where it is in time."""
    if not isinstance(command, wire.Expiring) or command.until_ns is None:
        return None
    now = now_ns()
    if now <= command.until_ns:
        return None
    asked = command.until_ns if command.asked_ns is None else min(command.asked_ns, command.until_ns)
    return f"came too late: asked {(now - asked) / 1e9:.0f} s ago; nothing was done"
