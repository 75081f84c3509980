"""What ranks tell, as rows of numbers that wait to be written, and how far each rank has come. Pure; for one thread.

Of a group of at most `wire.EACH_RECORD` ranks the records of all steps count, of a larger one the summaries. One by
one a record only adds to a table; the arithmetic is done for all that wait together. Imports NumPy.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from ddptop.agent import wire
from ddptop.agent.record.history.series import Buckets, Floats, Whole
from ddptop.agent.wire.steps.numbers import CUSTOM, MOST_COLUMNS, MOST_NAMES, NUMBERS, OVER_TIME, RECORDED

FORM: Final = 1
"""Number of the form of `Progress` and of the table of buckets; another one is not read."""
_READING_S: Final = 2
"""A reading of the memory, taken once a second, stands for the seconds before it."""
_FURTHEST: Final = 2**53
"""Steps beyond are no count of anything."""
_LAST_NS: Final = 4_000_000_000 * 10**9
"""Moments beyond this, in the year 2096, are no honest clock's."""
_LARGEST: Final = float(np.finfo(np.float32).max)
_FILLED: Final = 1e-6
"""Weight of a step in the seconds that it lasted for, but did not end in: next to nothing beside one that ended."""
_BEFORE: Final = 7
"""Columns of a row before its numbers: rank, step, moment, first and last second, steps, number of the step."""
_WIDTH: Final = _BEFORE + len(RECORDED)
_STEP: Final = RECORDED.index("step")


class Progress(msgspec.Struct, array_like=True, gc=False):
    """How far the ranks have come: what the file has of a history beside its buckets."""

    form: int
    world: int
    generation: int = 0
    """The newest that was told of."""
    before: int = 0
    """Steps of the generations before, which records count on from."""
    names: list[str] = msgspec.field(default_factory=list)
    """Values given by the script, in the order in which they came; to be read as `CUSTOM + name`."""
    refused: int = 0
    """Values left out because there were too many names."""
    seqs: dict[int, int] = msgspec.field(default_factory=dict)
    """By rank, the number of the newest record taken in; each generation counts from one."""
    first: dict[int, int] = msgspec.field(default_factory=dict)
    last: dict[int, int] = msgspec.field(default_factory=dict)
    """By rank, the first and the last step taken in."""
    since: dict[int, int] = msgspec.field(default_factory=dict)
    """By rank that began to count anew, the number of the piece from which on its steps count."""
    pieces: int = 0
    """Pieces that were written."""


class Rows:
    """The numbers that are not written yet."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._is_large = progress.world > wire.EACH_RECORD
        self._memory = [math.nan] * progress.world
        self._least_ms = [math.nan] * progress.world
        """By rank, the time of a step at the peak of its device."""
        self._waiting = array("d")
        self._given: list[tuple[int, str, float]] = []
        """Values given by the script: the row, the name and the value."""
        self._readings = array("d")
        """Of the memory: rank, first and last second, bytes."""

    def __bool__(self) -> bool:
        return bool(self._waiting or self._readings)

    # What comes

    def steps(self, rank: int, records: Sequence[wire.Step], generation: int) -> None:
        """Take in records of a rank, oldest first; those that came before, and those of an earlier generation, count
        no more.
        """
        if self._is_large or not self._follow(generation):
            return
        newest = self.progress.seqs.get(rank, -1)
        for step in records:
            if step.seq > newest:
                newest = step.seq
                wall_ns = max(0, step.wall_ns + step.counted_ns)
                self._add(
                    rank,
                    step.step,
                    step.end_at_ns,
                    wall_ns,
                    1,
                    [number.of_step(step) for number in NUMBERS],
                    step.metrics,
                )
        self.progress.seqs[rank] = newest

    def summary(self, told: wire.Summary) -> None:
        """Take in the means of a rank's newest steps."""
        if not self._is_large or not self._follow(told.generation):
            return
        if told.seq > self.progress.seqs.get(told.rank, -1):
            self.progress.seqs[told.rank] = told.seq
            wall_ns = max(0, told.wall_ns * told.steps)
            self._add(
                told.rank,
                told.step,
                told.end_at_ns,
                wall_ns,
                told.steps,
                [number.of_summary(told) for number in NUMBERS],
                told.metrics,
            )

    def memory(self, rank: int, at_ns: int, memory_bytes: int | None) -> None:
        """Take in a reading; it counts for the steps from here on."""
        self._memory[rank] = math.nan if memory_bytes is None else float(memory_bytes)
        if memory_bytes is not None and 0 < at_ns < _LAST_NS:
            second = at_ns // 10**9
            self._readings.extend((rank, -(-at_ns // 10**9) - _READING_S, second, memory_bytes))

    def work(self, rank: int, flops: float | None, peak: float | None) -> None:
        """Take in the operations of a step, and those a second at its device's peak, for the steps from here on."""
        self._least_ms[rank] = flops / peak * 1e3 if flops is not None and peak else math.nan

    def forget(self, rank: int) -> None:
        """Forget a rank: a new process in its place counts from one again."""
        self.progress.seqs.pop(rank, None)
        self._count_anew(rank)

    def _follow(self, generation: int) -> bool:
        """Let the steps of a new generation follow those of the one before; all ranks go on from the same step."""
        progress = self.progress
        if generation > progress.generation:
            progress.generation = generation
            progress.seqs.clear()
            # The median, which no single rank decides.
            progress.before = statistics.median_high(progress.last.values()) if progress.last else 0
        return generation == progress.generation

    def _add(
        self, rank: int, step: int, end_ns: int, took_ns: int, steps: int, numbers: Sequence[float],
        given: Mapping[str, float],
    ) -> None:  # fmt: skip
        progress = self.progress
        number, last = step + progress.before, progress.last.get(rank, 0)
        if number == last or not 0 < number < _FURTHEST:
            # It is no further step, and takes its time.
            number = 0
        else:
            if number < last:
                # The rank counts anew: what it had counted so far were no steps of the training.
                self._count_anew(rank)
            progress.last[rank] = number
            progress.first.setdefault(rank, number)
            for name, value in given.items():
                if name in progress.names or self._has_room_for(name):
                    self._given.append(
                        (len(self._waiting) // _WIDTH, CUSTOM + name, value if value == value else math.inf)
                    )
        mfu = self._least_ms[rank] / numbers[_STEP] if numbers[_STEP] > 0 else math.nan
        second = end_ns // 10**9 if 0 < end_ns < _LAST_NS and steps > 0 else -1
        since = -(-(end_ns - took_ns) // 10**9)
        self._waiting.extend(
            (rank, number, end_ns / 1e9, since, second, steps, step, *numbers, mfu, self._memory[rank])
        )  # fmt: skip

    def _has_room_for(self, name: str) -> bool:
        if len(self.progress.names) >= MOST_NAMES:
            self.progress.refused += 1
            return False
        self.progress.names.append(name)
        return True

    def _count_anew(self, rank: int) -> None:
        self.progress.first.pop(rank, None)
        self.progress.last.pop(rank, None)
        # The piece that is written next has what comes from here on.
        self.progress.since[rank] = self.progress.pieces + 1
        if self._waiting:
            table = np.frombuffer(self._waiting).reshape(-1, _WIDTH)
            table[table[:, 0] == rank, 1] = 0

    # What is written

    def settled(self) -> dict[str, Buckets]:
        """Return all that waits, by kind: over the `step`s, over `time`, and the `memory` over time."""
        found = {}
        table = np.array(self._waiting).reshape(-1, _WIDTH)
        counted = table[:, 1] > 0
        if counted.any():
            found["step"] = self._by_step(table, counted)
        timed = table[table[:, 4] >= 0]
        if len(timed):
            found["time"] = _by_time(timed)
        if self._readings:
            readings = np.array(self._readings).reshape(-1, 4)
            found["memory"] = _over_seconds(
                ("memory",), readings[:, 0], readings[:, 1], readings[:, 2], np.ones(len(readings)), readings[:, 3:]
            )
        return found

    def _by_step(self, table: Floats, counted: np.ndarray) -> Buckets:
        names = tuple(dict.fromkeys(name for _, name, _ in self._given))
        values = np.full((len(table), len(RECORDED) + len(names)), np.nan)
        values[:, : len(RECORDED)] = table[:, _BEFORE:]
        for row, name, value in self._given:
            values[row, len(RECORDED) + names.index(name)] = value
        table, values = table[counted], values[counted]
        ranks, keys = table[:, :2].T.astype(np.int64)
        weight = np.ones(len(table), np.float32)
        return Buckets((*RECORDED, *names), ranks, keys, table[:, 2].copy(), weight, _cells(values, weight))

    def clear(self) -> None:
        """Let go of all that waits."""
        self._waiting, self._readings = array("d"), array("d")
        self._given.clear()


def _by_time(table: Floats) -> Buckets:
    of = {name: table[:, _BEFORE + index] for index, name in enumerate(RECORDED)}
    of |= {"own": of["step"] - of["wait"], "number": table[:, 6]}
    # The memory has readings of its own.
    names = tuple(name for name in OVER_TIME if name != "memory")
    values = np.stack([of[name] for name in names], axis=1)
    return _over_seconds(names, table[:, 0], table[:, 3], table[:, 4], table[:, 5], values)


def _over_seconds(
    numbers: tuple[str, ...], ranks: Floats, since: Floats, last: Floats, weight: Floats, values: Floats
) -> Buckets:
    """Return buckets of a second: of the last one, and of those before it from `since` on."""
    last_of: Whole = last.astype(np.int64)
    lasted: Whole = np.clip(last_of - np.maximum(since.astype(np.int64), 0), 0, MOST_COLUMNS).astype(np.int64)
    rows = np.repeat(np.arange(len(last_of)), lasted + 1)
    back = np.arange(len(rows)) - np.repeat(np.cumsum(lasted + 1) - lasted - 1, lasted + 1)
    seconds = (last_of - lasted)[rows] + back
    heavy = np.where(seconds == last_of[rows], weight[rows], weight[rows] * _FILLED).astype(np.float32)
    return Buckets(
        numbers, ranks[rows].astype(np.int64), seconds + 1, seconds.astype(np.float64), heavy,
        _cells(values[rows], heavy),
    ).folded(0)  # fmt: skip


def _cells(values: Floats, weight: np.ndarray) -> np.ndarray:
    """Return the cells of buckets by (buckets, numbers); single precision holds no more than `_LARGEST`."""
    cells = np.empty((values.shape[1], 4, len(values)), np.float32)
    # Both infinities become one sign for "not finite".
    cells[:, :3] = np.where(np.abs(values) > _LARGEST, np.inf, values).T[:, None]
    cells[:, 3] = np.where(np.isnan(values), 0.0, weight[:, None]).T
    return cells
