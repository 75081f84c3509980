"""The history of a run for the views that look back: numbers by step and by time, and whole steps.

The store writes live records; `link.replay` adds those it reads from the recording, and `Link` says whether
they are complete. A frame refers to the history and does not copy it: it grows while the frame is shown, and a view
that draws from it says up to which moment or step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from ddptop.agent.wire import Beat, Step, Steps, Summary
from ddptop.tui.model.history.by_step import HistoryByStep
from ddptop.tui.model.history.by_time import HistoryByTime

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

    def __init__(self, world: int) -> None:
        self.by_time = HistoryByTime(world)
        self.steps = NewestSteps(world)
        self.by_step = HistoryByStep(world)
        self._generation = 0
        """Of the records of before that came last."""

    def take(self, rank: int, step: Step) -> None:
        """Take in a record of a rank; in order and once."""
        self.by_time.take(rank, step)
        self.steps.take(rank, step)
        if not self.by_step.only_earlier:
            self.by_step.take(rank, step)

    def take_samples(self, rank: int, steps: Sequence[Step]) -> None:
        """Take in records that stand for others that are not sent: part of the course, but no steps to show."""
        self.by_time.take_samples(rank, steps)
        if not self.by_step.only_earlier:
            self.by_step.take_samples(rank, steps)

    def take_earlier(self, recorded: Steps) -> None:
        """Take in records of before, which only the history has room for; in order among themselves."""
        if recorded.generation > self._generation:
            self._generation = recorded.generation
            self.by_step.count_on(self.by_step.last_earlier, earlier=True)
        if 0 <= recorded.rank < self.steps.world and recorded.generation == self._generation:
            for step in recorded.steps:
                self.by_step.take_earlier(recorded.rank, step)

    def take_summary(self, told: Summary) -> None:
        """Take in the means of a rank's steps; in order and once."""
        times = (told.wall_ns, told.data_ns, told.forward_ns, told.backward_ns, told.optimizer_ns)
        wait = math.nan if told.wait_ns is None else told.wait_ns
        loss = math.nan if told.loss is None else told.loss
        span = told.wall_ns * told.steps
        self.by_time.take_means(told.rank, told.end_at_ns, span, told.steps, (told.step, *times, wait, loss))
        self.by_step.take_summary(told)

    def beat(self, beat: Beat) -> None:
        """Take in a sign of life, for the memory it tells."""
        if beat.memory_bytes is not None:
            self.by_time.take_memory(beat.rank, beat.at_ns, beat.memory_bytes)
        self.by_step.take_memory(beat.rank, beat.memory_bytes)

    def restart(self) -> None:
        """Forget the steps: the ranks began anew and count from one again."""
        self.steps = NewestSteps(self.steps.world)
