"""Asks all ranks of a group for the checksums of their parameters at the end of the same step; none is held.

A step a little ahead is chosen, and another one further ahead where a rank has passed it before it was asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ddptop.agent import wire
from ddptop.agent.control.refusals import Cancelled, Hung, Refused
from ddptop.agent.observer.actions.controller import FARTHEST, PATIENCE_S, RENEW_S, SOON_S
from ddptop.agent.observer.actions.polled import Group, PolledRanks, named

AHEAD: Final = (2, 16, 128, 1024)
"""Steps by which the chosen step is ahead of the furthest rank, at each attempt."""


def gather(
    group: Group,
    *,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    waits: Callable[[str], None] = lambda line: None,
    cancelled: Callable[[], bool] = lambda: False,
    hangs: Callable[[], str] = lambda: "",
) -> dict[int, wire.Checksums]:
    """Return the checksums of every rank at the end of one step.

    Args:
        group: the ranks.
        patience_s: seconds without a step of a rank that is waited for after which it is given up.
        clock: a monotonic clock.
        sleep: waits for so many seconds.
        waits: takes one line on what is waited for, and an empty one once nothing is.
        cancelled: asked while it waits.
        hangs: as in `Controller`.

    Raises:
        Refused: they cannot be had, and why.
        Cancelled: the wait was cancelled.
        Hung: the run hangs.
    """
    polled = PolledRanks(group)
    for ahead in AHEAD:
        standing = polled.standing()
        if any(reply.done for reply in standing.values()):
            raise Refused("paused, and parameters are read at the end of a step; resume it, or ask while it makes one")
        steps = [reply.step or 0 for reply in standing.values()]
        if max(steps) - min(steps) > FARTHEST:
            raise Refused("the ranks do not share a step count, so there is no step to compare them at")
        found = _at(polled, max(steps) + ahead, patience_s, clock, sleep, waits, cancelled, hangs)
        if found is not None:
            return found
    raise Refused("its steps are too fast for this; `--check-parameters 100` compares them every 100 steps")


def _at(
    polled: PolledRanks,
    step: int,
    patience_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    waits: Callable[[str], None],
    cancelled: Callable[[], bool],
    hangs: Callable[[], str],
) -> dict[int, wire.Checksums] | None:
    """Return what all ranks tell of a step, None where one of them had passed it before it was asked."""
    nap, progress, told, began = 0.005, -1, False, clock()
    deadline, look_at = began + patience_s, began + SOON_S
    while True:
        replies = polled.ask(lambda id: wire.Check(id, step))
        found = {rank: reply.checksums for rank, reply in replies.items() if reply.checksums is not None}
        if len(found) == len(replies):
            if told:
                waits("")
            return found
        refused = {rank: reply for rank, reply in replies.items() if not reply.done and not reply.pending}
        if refused:
            rank, reply = next(iter(refused.items()))
            if reply.step is None:
                raise Refused(f"rank {rank}: {reply.text}")
            return None
        behind = [rank for rank in replies if rank not in found]
        if cancelled():
            raise Cancelled("cancelled; the run goes on")
        if (steps := sum(min(reply.step or 0, step) for reply in replies.values())) > progress:
            progress, deadline = steps, clock() + patience_s
        if clock() > look_at:
            if told_of := hangs():
                raise Hung(told_of)
            look_at = clock() + RENEW_S
        if clock() > deadline:
            raise Refused(f"{named(behind)} made no step within {patience_s:.0f} s; `ddptop stacks` shows why")
        if clock() > began + SOON_S:
            waits(f"waiting for {named(behind)} to make step {step:,}")
            told = True
        sleep(nap)
        nap = min(2 * nap, 0.1)
