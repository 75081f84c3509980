"""The history of a run for the views that look back: numbers by step and by time, and whole steps.

Of a live run its observer is asked for the numbers, of an ended one its file, when a view looks at them; the newest
steps are those that the store has taken in. A frame refers to the history and does not copy it: it grows while the
frame is shown, and a view that draws from it says up to which moment or step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from ddptop.agent.wire import Step
from ddptop.tui.model.history.asked import Asked

RECORDS: Final = 65_536
"""Step records held of all ranks together; the store holds most of them anyway."""
MOST_STEPS: Final = 240
LEAST_STEPS: Final = 16


class NewestSteps:
    """The ranks' records of the newest steps, by step number."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._limit = max(LEAST_STEPS, min(MOST_STEPS, RECORDS // max(1, world)))
        self._steps: dict[int, dict[int, Step]] = {}

    def take(self, rank: int, step: Step) -> None:
        """Take in a record."""
        together = self._steps.get(step.step)
        if together is None:
            if len(self._steps) >= self._limit:
                oldest = min(self._steps)
                if step.step < oldest:
                    return
                del self._steps[oldest]
            together = self._steps[step.step] = {}
        together[rank] = step

    def numbers(self, wanted: Collection[int]) -> list[int]:
        """Return the steps that all ranks `wanted` have completed, oldest first; any where there is no such step."""
        whole = sorted(number for number, ranks in self._steps.items() if all(rank in ranks for rank in wanted))
        return whole or sorted(self._steps)

    def of(self, number: int) -> Mapping[int, Step]:
        """Return the records of one step, by rank; none of a step that is not held."""
        return self._steps.get(number, {})

    def by_rank(self, rank: int) -> list[Step]:
        """Return one rank's records, oldest first."""
        return [ranks[rank] for _, ranks in sorted(self._steps.items()) if rank in ranks]


class History:
    """All numbers of one run over its steps and over time, and the whole records of its newest steps."""

    def __init__(self, world: int, asked: Asked) -> None:
        self.steps = NewestSteps(world)
        self.asked = asked
        """The questions, and what was answered."""
        self.by_step = asked.by_step
        self.by_time = asked.by_time

    def restart(self) -> None:
        """Forget the steps: the ranks began anew and count from one again."""
        self.steps = NewestSteps(self.steps.world)
