"""The history that the observer of a run keeps, fed with what the ranks tell. Pure; used by one thread.

Of a group of at most `wire.EACH_RECORD` ranks it takes the records of all steps, of a larger one the summaries. After a
takeover it is read from the run's file (`saved`), the newest steps bit by bit; what comes meanwhile waits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ddptop.agent import wire
from ddptop.agent.observer.history.by_step import HistoryByStep
from ddptop.agent.observer.history.by_time import Array, HistoryByTime
from ddptop.agent.observer.history.numbers import CUSTOM, RECORDED
from ddptop.agent.observer.history.series import Series

_WAITING: Final = 20_000
"""Messages that wait while the recording is read, at most: those of the last half minute, which may not be in it."""


class Kept:
    """The numbers of all ranks of a run over its steps and over time."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.by_step = HistoryByStep(world)
        self.by_time = HistoryByTime(world)
        self.generation = 0
        """The newest that was told of."""
        self.brief = world > wire.EACH_RECORD
        self.seqs: dict[int, int] = {}
        """By rank, the number of the newest record taken in; each generation counts from one."""
        self.possible: Callable[[int], bool] | None = None
        """Says whether a rank can have done so many steps by now; None: any number can be."""
        self._reached = 0
        """The furthest number that was possible."""
        self.impossible = 0
        """Messages left out because of a number that cannot be."""
        self._recorded: Iterator[wire.Steps | None] | None = None
        """What is in the run's file and has not been taken in."""
        self._waiting: deque[wire.Steps | wire.Summary] = deque(maxlen=_WAITING)

        self.load_time: Callable[[], None] | None = None
        """Reads the numbers over time, which nobody has asked for yet."""

    # What comes

    def steps(self, rank: int, records: Sequence[wire.Step], generation: int) -> None:
        """Take in records of a rank, oldest first; those that came before, and those of an earlier generation, count
        no more.
        """
        if self.brief or not self._can_be(_furthest(records)):
            return
        if self._recorded is not None:
            self._waiting.append(wire.Steps(rank, tuple(records), generation))
        elif 0 <= rank < self.world and self._follow(generation):
            self._take(rank, records)

    def summary(self, told: wire.Summary) -> None:
        """Take in the means of a rank's newest steps."""
        if not self.brief or not self._can_be(told.seq if told.seq > told.step else told.step):
            return
        if self._recorded is not None:
            self._waiting.append(told)
            return
        rank = told.rank
        if not 0 <= rank < self.world or not self._follow(told.generation) or told.seq <= self.seqs.get(rank, -1):
            return
        self.seqs[rank] = told.seq
        self.by_step.take_summary(told)
        self.by_time.take_summary(told)

    def beat(self, beat: wire.Beat) -> None:
        """Take in a sign of life, for the memory that it tells of."""
        if 0 <= beat.rank < self.world:
            if beat.memory_bytes is not None:
                self.by_time.take_memory(beat.rank, beat.at_ns, beat.memory_bytes)
            self.by_step.take_memory(beat.rank, beat.memory_bytes)

    def restart(self, generation: int) -> None:
        """Let the steps of a new generation follow those of the one before; all ranks go on from the same step."""
        if generation > self.generation:
            self.generation = generation
            self.seqs.clear()
            self.by_step.count_on(self.by_step.middle_last)

    def forget(self, rank: int) -> None:
        """Forget a rank in whose place there is another process of the same generation: it counts from one again."""
        self.seqs.pop(rank, None)
        self.by_step.forget(rank)

    def _can_be(self, number: int) -> bool:
        # What was possible stays so: most numbers need no look at the clock.
        if number <= self._reached or self.possible is None:
            return True
        if not self.possible(number):
            self.impossible += 1
            return False
        self._reached = number
        return True

    def _follow(self, generation: int) -> bool:
        self.restart(generation)
        return generation == self.generation

    def _take(self, rank: int, records: Sequence[wire.Step]) -> None:
        newest = self.seqs.get(rank, -1)
        for step in records:
            if step.seq > newest:
                newest = step.seq
                self.by_step.take(rank, step)
                self.by_time.take(rank, step)
        self.seqs[rank] = newest

    # What is in the file

    def read_from(self, recorded: Iterator[wire.Steps | None]) -> None:
        """Take in first, by `advance`, what these recorded messages have; what comes meanwhile waits.

        None among them says that the next one is not there yet.
        """
        self._recorded = recorded

    def begin_anew(self, recorded: Iterator[wire.Steps | None]) -> None:
        """Forget all, and take in by `advance` what these recorded messages have."""
        self.clear()
        self.read_from(recorded)

    def clear(self) -> None:
        """Forget all."""
        self.by_step, self.by_time = HistoryByStep(self.world), HistoryByTime(self.world)
        self.generation = 0
        self.seqs.clear()
        self.load_time = None

    @property
    def complete(self) -> bool:
        """False while there are recorded steps that have not been taken in."""
        return self._recorded is None

    def advance(self, deadline: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Take in recorded steps until a moment of the `clock`, as far as they are there."""
        if self._recorded is None:
            return
        for message in self._recorded:
            if message is None:
                return
            possible = 0 <= message.rank < self.world and self._can_be(_furthest(message.steps))
            if possible and self._follow(message.generation):
                self._take(message.rank, message.steps)
            if clock() > deadline:
                return
        self._recorded = None
        waiting, self._waiting = self._waiting, deque(maxlen=_WAITING)
        for each in waiting:
            if isinstance(each, wire.Summary):
                self.summary(each)
            else:
                self.steps(each.rank, each.steps, each.generation)

    # What is asked

    @property
    def names(self) -> Sequence[str]:
        """Values given by the script."""
        return self.by_step.names

    @property
    def refused(self) -> int:
        """Values left out because there were too many names."""
        return self.by_step.refused

    @property
    def last(self) -> int:
        """The last step of any rank, 0 before there was one."""
        return self.by_step.last

    def span(self, ranks: Sequence[int]) -> tuple[int, int] | None:
        """Return the first and the last step held of some ranks, None where there is none."""
        spans = [span for rank in ranks if (span := self.by_step.span(rank)) is not None]
        return (min(first for first, _ in spans), max(last for _, last in spans)) if spans else None

    def has(self, metric: str) -> bool:
        """Say whether there is a number of this name over the steps."""
        return metric in RECORDED or (metric.startswith(CUSTOM) and metric.removeprefix(CUSTOM) in self.names)

    def read_many(
        self, ranks: Sequence[int], metric: str, first: float, last: float
    ) -> tuple[npt.NDArray[np.int64], Series]:
        """Return whose each bucket is, and a metric of these ranks; of many ranks, of others too."""
        return self.by_step.read_many(ranks, metric, first, last)

    @property
    def columns(self) -> int:
        """Buckets of each width held over time."""
        return self.by_time.columns

    def window(self, metric: str, level: int, last: int, count: int, rank: int | None = None) -> Array:
        """Return a number over time; see `HistoryByTime.window`."""
        if self.load_time is not None:
            load, self.load_time = self.load_time, None
            load()
        return self.by_time.window(metric, level, last, count, rank)


def _furthest(records: Sequence[wire.Step]) -> int:
    return max([step.seq if step.seq > step.step else step.step for step in records], default=0)
