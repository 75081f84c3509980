"""Every rank's numbers over the whole run, by step: what plots draw, from the first step on.

Pure. Records go in as they come, and from a recording as `earlier` ones; both sides stay
bounded however long the run. Imports NumPy, so it is loaded only where a history is kept or looked at.
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
_LIVE: Final = "live"
_EARLIER: Final = "earlier"
"""From a recording: of before the live ones."""
_SAMPLED: Final = "sampled"
"""Stand for all steps before the live ones, until a recording has been read."""


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
        if not last < step < _FURTHEST:
            return
        self.last[rank] = step
        if not last:
            self.first.setdefault(rank, step)
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

    @property
    def furthest(self) -> int:
        return max(self.last.values(), default=0)

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
        self.records = 0
        """Records taken in so far: another number says that there is something new to draw."""
        self._before = {_LIVE: 0, _EARLIER: 0}
        """Steps of the generations before, which live records and earlier ones count on from."""
        self.complete = True
        """False while what was before is being read."""
        self._capacity = capacity_for(world)
        self._memory = [math.nan] * world
        self._parts: dict[tuple[str, str], _Numbers] = {}
        """By name ("" for the recorded numbers) and where it came from."""

    def take(self, rank: int, step: Step) -> None:
        """Take in a live record; in order."""
        self._take(rank, step, step.step + self._before[_LIVE], _LIVE, self._memory[rank])

    def take_earlier(self, rank: int, step: Step) -> None:
        """Take in a recorded step of before the live ones; in order among themselves."""
        number = step.step + self._before[_EARLIER]
        live = self._parts.get(("", _LIVE))
        if live is None or number < live.first.get(rank, _FURTHEST):
            self._take(rank, step, number, _EARLIER)

    def take_samples(self, rank: int, steps: Sequence[Step]) -> None:
        """Take in steps from before the first live one that stand for those between them; in order."""
        for step in steps:
            self._take(rank, step, step.step + self._before[_LIVE], _SAMPLED)

    def complete_earlier(self) -> None:
        """Say that all that is recorded was taken in: nothing has to stand for it any more."""
        self.complete = True
        self.records += 1
        for (name, part), numbers in self._parts.items():
            earlier = self._parts.get((name, _EARLIER))
            if part == _SAMPLED and earlier is not None:
                numbers.forget(numbers.last.keys() & earlier.last.keys())

    def _take(self, rank: int, step: Step, number: int, part: str, memory: float = math.nan) -> None:
        self.records += 1
        self._numbers("", part).add(rank, number, step.end_at_ns, _row(step, memory))
        self._take_custom(rank, number, step.end_at_ns, step.metrics, part)

    def _take_custom(self, rank: int, step: int, at_ns: int, values: Mapping[str, float], part: str) -> None:
        for name, value in values.items():
            if self._has_room_for(name):
                self._numbers(name, part).add(rank, step, at_ns, (_number(value),))

    def take_summary(self, told: Summary) -> None:
        """Take in the means of a rank's steps; in order and once."""
        self.records += 1
        number = told.step + self._before[_LIVE]
        self._numbers("", _LIVE).add(told.rank, number, told.end_at_ns, _means(told, self._memory[told.rank]))
        self._take_custom(told.rank, number, told.end_at_ns, told.metrics, _LIVE)

    def take_memory(self, rank: int, memory_bytes: int | None) -> None:
        """Take in a reading; it counts for the steps from here on."""
        self._memory[rank] = math.nan if memory_bytes is None else float(memory_bytes)

    def count_on(self, last: int, *, earlier: bool = False) -> None:
        """Let what comes from here on follow step `last`: all ranks were started anew and count from one again."""
        self._before[_EARLIER if earlier else _LIVE] = last

    @property
    def last_earlier(self) -> int:
        """The last of the earlier steps, of any rank."""
        return max((numbers.furthest for (_, part), numbers in self._parts.items() if part == _EARLIER), default=0)

    def forget(self, rank: int) -> None:
        """Forget a rank: a new process in its place counts from one again."""
        self.records += 1
        for numbers in self._parts.values():
            numbers.forget((rank,))

    @property
    def saved(self) -> Mapping[str, tuple[Course, Mapping[int, int], Mapping[int, int]]]:
        """What a file needs of the live numbers: by name ("" for `RECORDED`), course, first and last step by rank."""
        return {
            name: (numbers.course, numbers.first, numbers.last)
            for (name, part), numbers in self._parts.items()
            if part == _LIVE
        }

    def restore(self, name: str, course: Course, first: Mapping[int, int], last: Mapping[int, int]) -> None:
        """Put in what was saved of the live numbers."""
        if name and name not in self.names:
            self.names.append(name)
        self._numbers(name, _LIVE).put(course, first, last)
        self.records += 1

    @property
    def before(self) -> int:
        """Steps of the generations before, which live records count on from."""
        return self._before[_LIVE]

    @property
    def capacity(self) -> int:
        """Buckets of each width; see `Course`."""
        return self._capacity

    def _numbers(self, name: str, part: str) -> _Numbers:
        numbers = self._parts.get((name, part))
        if numbers is None:
            numbers = self._parts[name, part] = _Numbers(
                len(self._memory), 1 if name else len(RECORDED), self._capacity
            )
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
        parts = [
            numbers for numbers in (self._before_live(rank, ""), self._parts.get(("", _LIVE))) if numbers is not None
        ]
        parts = [numbers for numbers in parts if rank in numbers.last]
        return (
            (min(numbers.first[rank] for numbers in parts), max(numbers.last[rank] for numbers in parts))
            if parts
            else None
        )

    def _before_live(self, rank: int, name: str) -> _Numbers | None:
        sampled = self._parts.get((name, _SAMPLED))
        return sampled if sampled is not None and rank in sampled.last else self._parts.get((name, _EARLIER))

    @property
    def last(self) -> int:
        """The last step of any rank, 0 before there was one."""
        return max((numbers.furthest for (name, _), numbers in self._parts.items() if not name), default=0)

    @property
    def middle_last(self) -> int:
        """The median of the last steps of the ranks, which no single rank decides; 0 before there was one."""
        lasts: dict[int, int] = {}
        for (name, _), numbers in self._parts.items():
            if not name:
                for rank, last in numbers.last.items():
                    lasts[rank] = max(last, lasts.get(rank, 0))
        return statistics.median_high(lasts.values()) if lasts else 0

    def read(self, rank: int, metric: str, first: float = 0, last: float = math.inf) -> Series:
        """Return a metric of a rank between two steps: one of `RECORDED`, or `CUSTOM` and a name."""
        name, column = _column(metric)
        live, before_live = self._parts.get((name, _LIVE)), self._before_live(rank, name)
        parts = []
        if before_live is not None:
            began = math.inf if live is None else live.first.get(rank, math.inf)
            series = before_live.course.read(rank, column, first, min(last, began - 1))
            # A bucket may reach into what is live, and is known better there.
            parts.append(series.part(series.steps < began))
        if live is not None:
            parts.append(live.course.read(rank, column, first, last))
        return joined(parts)

    def read_many(
        self, ranks: Sequence[int], metric: str, first: float, last: float
    ) -> tuple[npt.NDArray[np.int64], Series]:
        """Return whose each bucket is, and a metric of these ranks; of many ranks, of others too."""
        if len(ranks) > _FEW:
            return self._read_all(metric, first, last)
        read = [self.read(rank, metric, first, last) for rank in ranks]
        return np.repeat(np.array(ranks, np.int64), [len(series.steps) for series in read]), joined(read)

    def _read_all(self, metric: str, first: float, last: float) -> tuple[npt.NDArray[np.int64], Series]:
        name, column = _column(metric)
        live, sampled, earlier = (self._parts.get((name, part)) for part in (_LIVE, _SAMPLED, _EARLIER))
        ranks, parts = [], []
        # Each part is known better by those before it, from the first step that they know.
        better: dict[int, float] = {} if live is None else dict(live.first)
        for part in (live, sampled, earlier):
            if part is None:
                continue
            whose, series = part.course.read_all(column, first, last)
            if part is not live:
                until = [better.get(rank, math.inf) for rank in range(int(whose.max(initial=0)) + 1)]
                wanted = series.steps < np.array(until)[whose]
                whose, series = whose[wanted], series.part(wanted)
            if part is sampled:
                better |= dict.fromkeys(sampled.last, -math.inf)
            ranks.append(whose)
            parts.append(series)
        return np.concatenate(ranks or [np.empty(0, np.int64)]), joined(parts)

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
        step.data_ns / 1e6,
        step.forward_ns / 1e6,
        step.backward_ns / 1e6,
        step.optimizer_ns / 1e6,
        math.nan if step.wait_ns is None else step.wait_ns / 1e6,
        step.other_ns / 1e6,
        statistics.median(calls) / 1e6 if calls else math.nan,
        math.nan if step.samples is None or not step.wall_ns else step.samples / step.wall_ns * 1e9,
        math.nan if step.lr is None else _number(step.lr),
        memory,
    )


def _means(told: Summary, memory: float) -> tuple[float, ...]:
    """Return a summary's numbers in the order of `RECORDED`."""
    times = (told.wall_ns, told.data_ns, told.forward_ns, told.backward_ns, told.optimizer_ns)
    return (
        math.nan if told.loss is None else _number(told.loss),
        *(spent / 1e6 for spent in times),
        math.nan if told.wait_ns is None else told.wait_ns / 1e6,
        told.other_ns / 1e6,
        math.nan if told.p50_ns is None else told.p50_ns / 1e6,
        math.nan if told.samples is None or not told.wall_ns else told.samples / told.wall_ns * 1e9,
        math.nan,
        memory,
    )


def _number(value: float) -> float:
    # NaN says "not known" in the arrays; a value that is NaN is known, and not finite.
    return math.inf if value != value else value
