"""Every rank's numbers over the whole run, by step: what plots draw, from the first step on.

Pure, and bounded however long the run. Imports NumPy, so it is loaded only where a history is kept or looked at.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ddptop.agent.observer.history.numbers import CUSTOM, RECORDED
from ddptop.agent.observer.history.series import Course, Series, joined
from ddptop.agent.wire import Step, Summary

MOST_NAMES: Final = 64
"""Names of values given by the script that are held; further ones are counted."""
_WAITING: Final = 1024
"""Rows that wait before they are taken into arrays together: one by one costs a hundred times as much."""
_ROUNDS: Final = 8
"""Or so many of each rank, where that is more."""
_FEW: Final = 16
"""Up to so many ranks are read one by one; more of them, all at once."""
_FURTHEST: Final = 2**53
"""Steps beyond are no count of anything."""


def capacity_for(world: int) -> int:
    """Return how many buckets of each width are kept for so many ranks.

    A day of 10 ms steps then takes 1 MB a rank up to 32 ranks, 0.1 MB at 1,024.
    """
    return max(16, min(256, 2**13 // max(1, world)))


class _Numbers:
    """Numbers of all ranks: those waiting, and those in arrays."""

    def __init__(self, world: int, columns: int, capacity: int) -> None:
        self._width = columns + 3
        self._waiting = array("d")
        self._most = max(_WAITING, _ROUNDS * world) * self._width
        self._course = Course(capacity)
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}
        """By rank, the first and the last step taken in."""

    def add(self, rank: int, step: int, at_ns: int, values: tuple[float, ...]) -> None:
        last = self.last.get(rank, 0)
        if step == last or not 0 < step < _FURTHEST:
            return
        if step < last:
            # The rank counts anew: what it had counted so far were no steps of the training.
            self.forget((rank,))
            last = 0
        self.last[rank] = step
        if not last:
            self.first[rank] = step
        self._waiting.extend((rank, step, at_ns / 1e9, *values))
        if len(self._waiting) >= self._most:
            self._settle()

    def _settle(self) -> None:
        rows = np.array(self._waiting).reshape(-1, self._width)
        del self._waiting[:]
        self._course.extend(rows)

    @property
    def course(self) -> Course:
        self._settle()
        return self._course

    def put(self, course: Course, first: Mapping[int, int], last: Mapping[int, int]) -> None:
        """Put in what was saved."""
        self._course = course
        self.first, self.last = dict(first), dict(last)

    def forget(self, ranks: Collection[int]) -> None:
        self.course.forget(ranks)
        for rank in ranks:
            self.first.pop(rank, None)
            self.last.pop(rank, None)


class HistoryByStep:
    """The recorded numbers of all ranks, and the values that the script gives itself."""

    def __init__(self, world: int) -> None:
        self.names: list[str] = []
        """Values given by the script, in the order in which they came; to be read as `CUSTOM + name`."""
        self.refused = 0
        """Values left out because there were too many names."""
        self.before = 0
        """Steps of the generations before, which records count on from."""
        self._capacity = capacity_for(world)
        self._memory = [math.nan] * world
        self._parts: dict[str, _Numbers] = {}
        """By name, "" for the recorded numbers."""

    def take(self, rank: int, step: Step) -> None:
        """Take in a record; in order."""
        number = step.step + self.before
        self._numbers("").add(rank, number, step.end_at_ns, _row(step, self._memory[rank]))
        self._take_custom(rank, number, step.end_at_ns, step.metrics)

    def take_summary(self, told: Summary) -> None:
        """Take in the means of a rank's steps; in order and once."""
        number = told.step + self.before
        self._numbers("").add(told.rank, number, told.end_at_ns, _means(told, self._memory[told.rank]))
        self._take_custom(told.rank, number, told.end_at_ns, told.metrics)

    def _take_custom(self, rank: int, step: int, at_ns: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if self._has_room_for(name):
                self._numbers(name).add(rank, step, at_ns, (_number(value),))

    def take_memory(self, rank: int, memory_bytes: int | None) -> None:
        """Take in a reading; it counts for the steps from here on."""
        self._memory[rank] = math.nan if memory_bytes is None else float(memory_bytes)

    def count_on(self, last: int) -> None:
        """Let what comes from here on follow step `last`: all ranks were started anew and count from one again."""
        self.before = last

    def forget(self, rank: int) -> None:
        """Forget a rank: a new process in its place counts from one again."""
        for numbers in self._parts.values():
            numbers.forget((rank,))

    @property
    def saved(self) -> Mapping[str, tuple[Course, Mapping[int, int], Mapping[int, int]]]:
        """What a file needs: by name ("" for `RECORDED`), course, first and last step by rank."""
        return {name: (numbers.course, numbers.first, numbers.last) for name, numbers in self._parts.items()}

    def restore(self, name: str, course: Course, first: Mapping[int, int], last: Mapping[int, int]) -> None:
        """Put in what was saved."""
        if name and name not in self.names:
            self.names.append(name)
        self._numbers(name).put(course, first, last)

    @property
    def capacity(self) -> int:
        """Buckets of each width; see `Course`."""
        return self._capacity

    def _numbers(self, name: str) -> _Numbers:
        numbers = self._parts.get(name)
        if numbers is None:
            columns = 1 if name else len(RECORDED)
            numbers = self._parts[name] = _Numbers(len(self._memory), columns, self._capacity)
        return numbers

    def _has_room_for(self, name: str) -> bool:
        if name in self.names:
            return True
        if len(self.names) >= MOST_NAMES:
            self.refused += 1
            return False
        self.names.append(name)
        return True

    def span(self, rank: int) -> tuple[int, int] | None:
        """Return the first and the last step held of a rank, None where there is none."""
        numbers = self._parts.get("")
        return None if numbers is None or rank not in numbers.last else (numbers.first[rank], numbers.last[rank])

    @property
    def last(self) -> int:
        """The last step of any rank, 0 before there was one."""
        numbers = self._parts.get("")
        return 0 if numbers is None else max(numbers.last.values(), default=0)

    @property
    def middle_last(self) -> int:
        """The median of the last steps of the ranks, which no single rank decides; 0 before there was one."""
        numbers = self._parts.get("")
        return 0 if numbers is None or not numbers.last else statistics.median_high(numbers.last.values())

    def read(self, rank: int, metric: str, first: float = 0, last: float = math.inf) -> Series:
        """Return a metric of a rank between two steps: one of `RECORDED`, or `CUSTOM` and a name."""
        name, column = _column(metric)
        numbers = self._parts.get(name)
        return joined(()) if numbers is None else numbers.course.read(rank, column, first, last)

    def read_many(
        self, ranks: Sequence[int], metric: str, first: float, last: float
    ) -> tuple[npt.NDArray[np.int64], Series]:
        """Return whose each bucket is, and a metric of these ranks; of many ranks, of others too."""
        if len(ranks) > _FEW:
            name, column = _column(metric)
            numbers = self._parts.get(name)
            if numbers is None:
                return np.empty(0, np.int64), joined(())
            return numbers.course.read_all(column, first, last)
        read = [self.read(rank, metric, first, last) for rank in ranks]
        return np.repeat(np.array(ranks, np.int64), [len(series.steps) for series in read]), joined(read)

    @property
    def nbytes(self) -> int:
        """Memory of all numbers held."""
        return sum(numbers.course.nbytes for numbers in self._parts.values())


def _column(metric: str) -> tuple[str, int]:
    """Return the name that a metric is held under, and its column there."""
    return (metric.removeprefix(CUSTOM), 0) if metric.startswith(CUSTOM) else ("", RECORDED.index(metric))


def _row(step: Step, memory: float) -> tuple[float, ...]:
    """Return a record's numbers in the order of `RECORDED`."""
    calls = [
        call.duration_ns
        for call in step.collectives
        if call.duration_ns is not None and call.op.startswith("all_reduce")
    ]
    return (
        math.nan if step.loss is None else _number(step.loss),
        step.wall_ns / 1e6,
        *_spans(step),
        # A history has no number for copies.
        (step.other_ns + (step.copy_ns or 0)) / 1e6,
        statistics.median(calls) / 1e6 if calls else math.nan,
        math.nan if step.samples is None or not step.wall_ns else step.samples / step.wall_ns * 1e9,
        math.nan if step.lr is None else _number(step.lr),
        memory,
    )


def _means(told: Summary, memory: float) -> tuple[float, ...]:
    """Return a summary's numbers in the order of `RECORDED`."""
    return (
        math.nan if told.loss is None else _number(told.loss),
        told.wall_ns / 1e6,
        *_spans(told),
        (told.other_ns + (told.copy_ns or 0)) / 1e6,
        math.nan if told.p50_ns is None else told.p50_ns / 1e6,
        math.nan if told.samples is None or not told.wall_ns else told.samples / told.wall_ns * 1e9,
        math.nan,
        memory,
    )


def _spans(told: Step | Summary) -> list[float]:
    """Return the phases of `RECORDED` but `other`, in ms; NaN where one is not known."""
    spans = told.data_ns, told.forward_ns, told.backward_ns, told.optimizer_ns, told.wait_ns
    return [math.nan if span is None else span / 1e6 for span in spans]


def _number(value: float) -> float:
    # NaN says "not known" in the arrays; a value that is NaN is known, and not finite.
    return math.inf if value != value else value
