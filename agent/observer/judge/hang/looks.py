"""Inspections of the ranks at several moments, and what has changed from one to the next: a change is progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from ddptop.agent.wire import Frame, Inspection, Thread

MEMORY: Final = 4 << 20
"""Bytes of memory more or less from which on a process fills or empties it."""
MOVED: Final = 256 << 10
"""Bytes read and written from which on it reads or writes something of size."""
_SLACK_NS: Final = 200_000_000
"""Clocks are read at slightly different moments of two inspections."""


@dataclass(frozen=True)
class Look:
    """The ranks at one moment."""

    at_ns: int
    ranks: dict[int, Inspection]


def main_thread(inspection: Inspection | None) -> Thread | None:
    """Return the training thread of a rank, None where its stack is not known."""
    if inspection is None:
        return None
    found = next((thread for thread in inspection.threads if thread.main), None)
    thread = found or (inspection.threads[0] if inspection.threads else None)
    return thread if thread is not None and thread.frames else None


def with_calls(before: Inspection | None, after: Inspection) -> Inspection:
    """Return an inspection from outside with the calls that the agent sent a moment earlier: it may only be late.

    They are the least that the rank has called.
    """
    if before is None or not before.observed or after.observed or after.by == "agent" or before.pid != after.pid:
        return after
    return msgspec.structs.replace(after, groups=before.groups, open=before.open, observed=True)


def has_advanced(before: Inspection, after: Inspection) -> bool:
    """Say whether a rank has completed a step, called another collective or finished one between two inspections."""
    if before.pid != after.pid:
        return True
    # A look from outside does not show the step.
    if after.step > before.step and (before.by == "agent" or before.step):
        return True
    if not before.by == after.by == "agent":
        return False
    calls = {group.group: group.calls for group in before.groups}
    if any(group.calls > calls.get(group.group, 0) for group in after.groups):
        return True
    between = after.at_ns - before.at_ns
    known = {(call.op, call.group, call.number) for call in after.open}
    # A call that was open and is not any more has completed; one that is younger than the time between is another one.
    return any((call.op, call.group, call.number) not in known for call in before.open) or any(
        call.open_ns + _SLACK_NS < between for call in after.open
    )


def stacks(looks: Sequence[Look], rank: int) -> list[tuple[Frame, ...]]:
    """Return the stacks of a rank's training thread, innermost frame first, of the looks in which it is known."""
    found = (main_thread(look.ranks.get(rank)) for look in looks)
    return [thread.frames for thread in found if thread is not None]


def moves(seen: Sequence[Inspection]) -> bool:
    """Say whether a process has taken memory or let go of it, or read or written files, between the last two looks."""
    first, last = seen[-2:][0], seen[-1]
    pairs = (first.memory_bytes, last.memory_bytes, MEMORY), (first.moved_bytes, last.moved_bytes, MOVED)
    return first.pid == last.pid and any(
        before is not None and now is not None and abs(now - before) >= least for before, now, least in pairs
    )


def stands_still(frames: Sequence[tuple[Frame, ...]], *, users_alone: bool = False) -> bool:
    """Say whether several stacks are the same line by line, or at least in the user's own code."""
    return len({_lines(each, users_alone) for each in frames}) <= 1


def _lines(frames: tuple[Frame, ...], users_alone: bool) -> tuple[tuple[str, str, int], ...]:
    return tuple((frame.file, frame.function, frame.line) for frame in frames if not (users_alone and frame.library))


def spins_in_user_code(frames: Sequence[tuple[Frame, ...]]) -> bool:
    """Say whether all that changes between several stacks is the user's own code, down to the innermost frame.

    Work of an evaluation goes through libraries, whose frames change; a loop that does not end stays in its lines.
    """
    if any(not each or each[0].library for each in frames):
        return False
    outermost = [each[::-1] for each in frames]
    common = 0
    for level in zip(*outermost, strict=False):
        if len({(frame.file, frame.function) for frame in level}) > 1:
            break
        common += 1
    return not any(frame.library for each in outermost for frame in each[common:])
