"""The deadline of a command: a process that reads the command later refuses it, because its sender has given up.

The clock runs from the start of the machine, so that all its processes share it and
nobody can set it; the time in which the machine sleeps counts.  A command without a deadline, as older
onlookers send it, is never refused for its age.  On its way to another machine a command bears the wall clock of its
sender, of which the receiver knows how far it is ahead.
"""

from __future__ import annotations

import time
from typing import Final, TypeVar

import msgspec

from ddptop.agent import wire

_FARTHEST_S: Final = 1e9
"""Seconds that two clocks can be apart at most; what is beyond is no clock."""
_MOST_NS: Final = (1 << 63) - 1

_C = TypeVar("_C", bound=wire.Command)


def now_ns() -> int:
    """Return the nanoseconds since the machine was started."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def limited(command: _C, seconds: float) -> _C:
    """Return a command with a deadline in so many seconds; a command that needs none is returned as it is."""
    if not isinstance(command, wire.Expiring):
        return command
    now = now_ns()
    return msgspec.structs.replace(command, asked_ns=now, until_ns=now + int(seconds * 1e9))


def departing(command: wire.Command) -> wire.Command:
    """Return a command as it goes to another machine: its times are those of the wall clock here."""
    return _shifted(command, time.time_ns() - now_ns())


def arriving(command: wire.Command, ahead_s: float | None) -> wire.Command:
    """Return a command that has come from another machine, with the times of this one.

    Args:
        command: as `departing` has made it there.
        ahead_s: seconds by which the wall clock there is ahead of this one. None: not known; then the command is of
            this moment, with the time that its sender has given it.
    """
    if not isinstance(command, wire.Expiring) or command.until_ns is None:
        return command
    if ahead_s is None or not abs(ahead_s) < _FARTHEST_S:
        asked = command.until_ns if command.asked_ns is None else command.asked_ns
        return _shifted(command, now_ns() - asked)
    return _shifted(command, now_ns() - time.time_ns() - int(ahead_s * 1e9))


def _shifted(command: wire.Command, ns: int) -> wire.Command:
    if not isinstance(command, wire.Expiring) or command.until_ns is None:
        return command
    asked = None if command.asked_ns is None else _bounded(command.asked_ns + ns)
    return msgspec.structs.replace(command, asked_ns=asked, until_ns=_bounded(command.until_ns + ns))


def _bounded(ns: int) -> int:
    return max(-_MOST_NS, min(_MOST_NS, ns))


def lateness(command: wire.Command) -> str | None:
    """Return one line for the sender and the events where a command came too late, None where it is in time."""
    if not isinstance(command, wire.Expiring) or command.until_ns is None:
        return None
    now = now_ns()
    if now <= command.until_ns:
        return None
    asked = command.until_ns if command.asked_ns is None else min(command.asked_ns, command.until_ns)
    return f"came too late: asked {(now - asked) / 1e9:.0f} s ago; nothing was done"
