"""Asks all ranks of a group for the checksums of their parameters at the end of the same step; none is held.

A step a little ahead is chosen, and another one further ahead where a rank has passed it before it was asked.
"""

from __future__ import annotations

from typing import Final

from ddptop.agent import wire
from ddptop.agent.control.refusals import Refused
from ddptop.agent.observer.actions.controller import FARTHEST, PATIENCE_S
from ddptop.agent.observer.actions.polled import PolledRanks, named
from ddptop.agent.observer.actions.wait import Wait

AHEAD: Final = (2, 16, 128, 1024)
"""Steps by which the chosen step is ahead of the furthest rank, at each attempt."""


def gather(ranks: PolledRanks, wait: Wait, patience_s: float = PATIENCE_S) -> dict[int, wire.Checksums]:
    """Return the checksums of every rank at the end of one step.

    Args:
        ranks: of the run.
        wait: where the question says what it waits for, and is cancelled.
        patience_s: seconds without a step of a rank that is waited for after which it is given up.

    Raises:
        Refused: they cannot be had, and why.
        Cancelled: the wait was cancelled.
        Hung: the run hangs.
    """
    for ahead in AHEAD:
        standing = ranks.standing()
        if any(reply.done for reply in standing.values()):
            raise Refused("paused, and parameters are read at the end of a step; resume it, or ask while it makes one")
        steps = [reply.step or 0 for reply in standing.values()]
        if max(steps) - min(steps) > FARTHEST:
            raise Refused("the ranks do not share a step count, so there is no step to compare them at")
        found = _at(ranks, max(steps) + ahead, wait, patience_s)
        if found is not None:
            return found
    raise Refused("its steps are too fast for this; `--check-parameters 100` compares them every 100 steps")


def _at(ranks: PolledRanks, step: int, wait: Wait, patience_s: float) -> dict[int, wire.Checksums] | None:
    """Return the checksums of all ranks at a step, None where one of them had passed it before it was asked."""
    for _ in wait.rounds():
        replies = ranks.ask(wire.Check(0, step))
        found = {rank: reply.checksums for rank, reply in replies.items() if reply.checksums is not None}
        if len(found) == len(replies):
            return found
        refused = {rank: reply for rank, reply in replies.items() if not reply.done and not reply.pending}
        if refused:
            rank, reply = next(iter(refused.items()))
            if reply.step is None:
                raise Refused(f"rank {rank}: {reply.text}")
            break
        behind = named(replies.keys() - found)
        if wait.stuck_s(sum(min(reply.step or 0, step) for reply in replies.values())) > patience_s:
            raise Refused(f"{behind} made no step within {patience_s:.0f} s; `ddptop stacks` shows why")
        wait.tell(f"waiting for {behind} to make step {step:,}")
    return None
