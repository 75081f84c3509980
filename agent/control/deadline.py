"""Until when a command may be carried out: what reads it later does nothing, because its sender has given up.

Counted by a clock that runs from the start of the machine, so that all its processes share it and
nobody can set it; the sleep of the machine counts.  A command without a deadline, as older
onlookers send it, never comes too late.
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
    """Return a command that is refused once it is older than this; one that needs no deadline as it is."""
    if not isinstance(command, wire.Expiring) or (isinstance(command, wire.Resume) and command.serial):
        # A decided resume is a decision like the others.
        return command
    now = now_ns()
    return msgspec.structs.replace(command, asked_ns=now, until_ns=now + int(seconds * 1e9))


def lateness(command: wire.Command) -> str | None:
    """Say that a command came too late, in one line for its sender and the events; None where it is in time."""
    if not isinstance(command, wire.Expiring) or command.until_ns is None:
        return None
    now = now_ns()
    if now <= command.until_ns:
        return None
    asked = command.until_ns if command.asked_ns is None else min(command.asked_ns, command.until_ns)
    return f"came too late: asked {(now - asked) / 1e9:.0f} s ago; nothing was done"
