"""The calls of collectives that have not completed, as far as that can be known when somebody asks.

Nothing here is done while calls are made, where it would cost the training: most of it follows from what the main
thread waits for.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType
from typing import NamedTuple

from ddptop.agent.rank.collectives.waits import Waits
from ddptop.agent.rank.records.device_time import CAPTURES
from ddptop.agent.rank.records.stamps import Call, Stamps


class Open(NamedTuple):
    """A call that has not completed."""

    call: Call
    blocking: bool
    """The training thread is blocked in it."""
    sure: bool
    """False: it may have completed."""


def find(flying: Iterable[Call], stamps: Stamps, waits: Waits, main: FrameType | None, *, is_over: bool) -> list[Open]:
    """Return the open calls, oldest first.

    Args:
        flying: the calls that are not known to be complete.
        stamps: of this rank.
        waits: of this rank.
        main: the innermost frame of the training thread.
        is_over: the step in which calls were made that are not timed is over.
    """
    awaited = waits.awaited(main)
    works = waits.works()
    found = []
    for call in sorted(flying, key=lambda call: call.entered):
        state = _state(call, stamps, works, awaited, main, is_over=is_over)
        if state is not None:
            found.append(Open(call, *state))
    if awaited is not None and len(found) == 1:
        # There is nothing else that it can wait for, however the call was made.
        found = [found[0]._replace(blocking=True)]
    return found


def _state(
    call: Call,
    stamps: Stamps,
    works: dict[int, object],
    awaited: object,
    main: FrameType | None,
    *,
    is_over: bool,
) -> tuple[bool, bool] | None:
    """Say whether the training thread is blocked in a call, and whether it is surely open; None: it has completed."""
    if call.device is not None:
        # The events of a graph's capture cannot be asked for.
        return None if call.duration is not None else (False, not CAPTURES.under_way)
    if call.expected:
        return None if call.done is not None else (call.blocking, True)
    if id(call) in works:
        work = works[id(call)]
        if work is awaited:
            return True, True
        # The works of gloo's sends and receives are known to be complete only by a wait.
        return None if _is_completed(work) else (False, False)
    if is_over or (call.deferred and stamps.activity != "backward"):
        return None
    if call.origin:
        # C++ waits for it below the function that has called it, which is the innermost one for as long.
        inside = main is None or main.f_globals.get("__name__") == call.origin
        return (True, main is not None) if inside else None
    if call.blocking:
        return None if stamps.waited_since(call.entered) else (True, True)
    return False, False


def _is_completed(work: object) -> bool:
    completed: object = CAPTURES.ask(work.is_completed)  # type: ignore[attr-defined]  # it is torch's
    return completed is True
