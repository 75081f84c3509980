"""The history of a run for the views that look back: numbers by step and by time, and whole steps.

Of a live run its observer is asked for the numbers, of an ended one its file, when a view looks at them; the newest
steps are those that the store has taken in. A frame refers to
the history and does not copy it: it grows while the frame is shown, and a view that draws from it says up to which
moment or step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from ddptop.agent.observer.history.by_step import HistoryByStep
from ddptop.agent.observer.history.by_time import Array, HistoryByTime
from ddptop.agent.observer.history.series import Series
from ddptop.agent.wire import Beat, Step, Steps, Summary
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


class OverSteps(Protocol):
    """The numbers of all ranks over the steps, as views read them; `HistoryByStep` says what each is."""

    @property
    def names(self) -> Sequence[str]:
        """Values given by the script."""
        ...

    @property
    def records(self) -> int:
        """Another number says that there is something new to draw."""
        ...

    @property
    def complete(self) -> bool:
        """False while what was before is being read."""
        ...

    @property
    def last(self) -> int:
        """The last step of any rank, 0 before there was one."""
        ...

    def span(self, rank: int) -> tuple[int, int] | None:
        """Return the first and the last step held of a rank."""
        ...

    def read(self, rank: int, metric: str, first: float = 0, last: float = math.inf) -> Series:
        """Return a metric of a rank between two steps."""
        ...

    def read_many(
        self, ranks: Sequence[int], metric: str, first: float, last: float
    ) -> tuple[npt.NDArray[np.int64], Series]:
        """Return whose each bucket is, and a metric of these ranks, maybe of others too."""
        ...


class OverTime(Protocol):
    """The numbers of all ranks over time, as views read them; `HistoryByTime` says what each is."""

    world: int
    columns: int

    def bucket(self, level: int, at: float) -> int:
        """Return the number of the bucket that a moment is in."""
        ...

    def knows(self, level: int, bucket: int) -> bool:
        """Say whether any rank has completed a step in a bucket."""
        ...

    def window(self, metric: str, level: int, last: int, count: int, rank: int | None = None) -> Array:
        """Return a metric over the `count` buckets up to number `last`."""
        ...


class History:
    """All numbers of one run over its steps and over time, and the whole records of its newest steps.

    The numbers are those that are taken in here, or those that were `asked` of the observer or of the run's file.
    """

    def __init__(self, world: int, asked: Asked | None = None) -> None:
        self.steps = NewestSteps(world)
        self.asked = asked
        """The questions, and what was answered; None where the numbers are taken in here."""
        self._by_step = HistoryByStep(world)
        self._by_time = HistoryByTime(world if asked is None else 1)
        self._generation = 0
        """Of the records of before that came last."""

    @property
    def by_step(self) -> OverSteps:
        """The numbers over the steps."""
        return self._by_step if self.asked is None else self.asked.by_step

    @property
    def by_time(self) -> OverTime:
        """The numbers over time."""
        return self._by_time if self.asked is None else self.asked.by_time

    def take(self, rank: int, step: Step) -> None:
        """Take in a record of a rank; in order and once."""
        self.steps.take(rank, step)
        if self.asked is None:
            self._by_time.take(rank, step)
            self._by_step.take(rank, step)

    def take_samples(self, rank: int, steps: Sequence[Step]) -> None:
        """Take in records that stand for others that are not sent: part of the course, but no steps to show."""
        if self.asked is None:
            self._by_time.take_samples(rank, steps)
            self._by_step.take_samples(rank, steps)

    def take_earlier(self, recorded: Steps) -> None:
        """Take in records of before, which only the history has room for; in order among themselves."""
        if recorded.generation > self._generation:
            self._generation = recorded.generation
            self._by_step.count_on(self._by_step.last_earlier, earlier=True)
        if 0 <= recorded.rank < self.steps.world and recorded.generation == self._generation:
            for step in recorded.steps:
                self._by_step.take_earlier(recorded.rank, step)

    def complete_earlier(self) -> None:
        """Say that all that is recorded was taken in."""
        self._by_step.complete_earlier()

    def know_whole(self, whole: bool) -> None:
        """Say whether what was before has been read."""
        self._by_step.complete = whole

    def take_summary(self, told: Summary) -> None:
        """Take in the means of a rank's steps; in order and once."""
        if self.asked is None:
            self._by_time.take_summary(told)
            self._by_step.take_summary(told)

    def beat(self, beat: Beat) -> None:
        """Take in a sign of life, for the memory it tells."""
        if self.asked is None:
            if beat.memory_bytes is not None:
                self._by_time.take_memory(beat.rank, beat.at_ns, beat.memory_bytes)
            self._by_step.take_memory(beat.rank, beat.memory_bytes)

    def count_on(self, last: int) -> None:
        """Let what comes from here on follow step `last`: all ranks were started anew and count from one again."""
        self._by_step.count_on(last)

    def forget(self, rank: int) -> None:
        """Forget the steps of a rank: a new process in its place counts from one again."""
        self._by_step.forget(rank)

    def restart(self) -> None:
        """Forget the steps: the ranks began anew and count from one again."""
        self.steps = NewestSteps(self.steps.world)
