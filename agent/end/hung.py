"""The hang in which a run stands, or in which it came to its end. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ddptop.agent import wire

_LASTS_NS: Final = 10_000_000_000
"""How long before the end a hang may be over, and still be what the end came of: ranks that give up leave it."""
_LEAST_NS: Final = 2_000_000_000
"""A hang that began so shortly before the first end, or after it, came of that end: ranks wait for a dead one."""


def at_exit(verdicts: Sequence[wire.Verdict]) -> wire.Verdict | None:
    """Return the verdict on scripts that had finished while their processes went on; None where there was none."""
    told = (each for each in reversed(verdicts) if each.hang is not None and each.hang.kind == "at_exit")
    return next(told, None)


def at_the_end(
    verdicts: Sequence[wire.Verdict], ended_at_ns: int | None, *, by_timeout: bool = False
) -> wire.Verdict | None:
    """Return the verdict on the hang that goes on, or that went on when the run came to its end; None without one.

    A rank that is gone and leaves the others waiting is an end, not a hang before it.

    Args:
        verdicts: those of the record, oldest first.
        ended_at_ns: when the first rank ended; None while all live.
        by_timeout: the end was the timeout of a collective, into which ranks run for one that works, too.
    """
    for verdict in reversed(verdicts):
        if verdict.hang is None or verdict.hang.kind == "gone":
            continue
        if verdict.kind != "hang" and not (by_timeout and verdict.hang.kind == "working"):
            continue
        until = verdict.until_at_ns
        if ended_at_ns is None:
            if until is None:
                return verdict
        elif verdict.since_at_ns < ended_at_ns - _LEAST_NS and (until is None or until >= ended_at_ns - _LASTS_NS):
            return verdict
    return None
