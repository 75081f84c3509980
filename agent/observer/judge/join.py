"""Brings the ranks' records of each step together by its number. Pure and bounded."""

from __future__ import annotations

from typing import Final

from ddptop.agent.wire import Step

PENDING: Final = 1024
"""Steps held while records of other ranks are still to come."""


class StepJoin:
    """Takes the records of a group and gives back whole steps; one of which a rank has sent no record is left out."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._steps: dict[int, dict[int, Step]] = {}
        self._last: dict[int, int] = {}
        """By rank, the number of its newest record."""

    def take(self, rank: int, step: Step) -> dict[int, Step] | None:
        """Take in a record, in order within each rank; return those of all ranks of its step once it is the last.

        A rank that has begun to count anew is not compared by its records from before.
        """
        if step.step < self._last.get(rank, 0):
            for number, others in list(self._steps.items()):
                others.pop(rank, None)
                if not others:
                    del self._steps[number]
        self._last[rank] = step.step
        together = self._steps.setdefault(step.step, {})
        together[rank] = step
        if len(together) < self._world:
            if len(self._steps) > PENDING:
                del self._steps[next(iter(self._steps))]
            return None
        # Records come in order: what an older step lacks now will never come.
        while self._steps and (oldest := next(iter(self._steps))) <= step.step:
            del self._steps[oldest]
        return together
