"""Growth of memory, told from a use that has settled, by the ranks' heartbeats. Pure, bounded."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ddptop.agent.observer.judge.kinds.finder import Finder
from ddptop.agent.text import plural, size, span
from ddptop.agent.wire import Beat, Verdict

KIND: Final = "memory_creep"
CELL_S: Final = 5.0
"""The least of so many seconds is one value: what comes and goes within it does not count."""
CELLS: Final = 60
SETTLING_S: Final = 30.0
"""After the first step caches fill and workers start: that is no growth to tell."""
PARTS: Final = 6
STRETCHES: Final = (CELLS, 24)
"""Values that are looked at, five minutes' and two minutes': the longer one sees what grows more slowly."""
LEAST_GROWTH: Final = 0.05
LEAST_BYTES: Final = 32 * 2**20
URGENT_S: Final = 3600.0
"""Memory that is full within this time ends the training unless somebody acts."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory that grew all the time it was looked at."""

    since_step: int
    since_at_ns: int
    grown: int
    bytes: int
    """Now."""
    total: int | None
    bytes_per_s: float

    @property
    def left_s(self) -> float | None:
        """Time until nothing is left, where the size of the whole is known."""
        return None if self.total is None else max(0.0, (self.total - self.bytes) / self.bytes_per_s)


class Memory:
    """The memory of one rank over the last minutes."""

    def __init__(self) -> None:
        self._begun_ns: int | None = None
        self._cells: deque[tuple[int, int, int]] = deque(maxlen=CELLS)
        """(start of the cell, least bytes in it, step), oldest first."""
        self._total: int | None = None

    def take(self, beat: Beat) -> bool:
        """Take in a heartbeat; return whether there is a new value to judge."""
        # A census takes memory of its own.
        if beat.memory_bytes is None or beat.step < 1 or beat.state == "held":
            return False
        self._begun_ns = self._begun_ns or beat.at_ns
        if beat.at_ns - self._begun_ns < SETTLING_S * 1e9:
            return False
        self._total = beat.memory_total_bytes
        start, least, step = self._cells[-1] if self._cells else (0, 0, 0)
        if self._cells and 0 <= beat.at_ns - start < CELL_S * 1e9:
            self._cells[-1] = (start, min(least, beat.memory_bytes), step)
            return False
        self._cells.append((beat.at_ns, beat.memory_bytes, beat.step))
        return True

    def growth(self) -> Growth | None:
        """Return how it grows, None where it does not: in every part of the time, and by enough to matter."""
        stretches = (list(self._cells)[-length:] for length in STRETCHES if len(self._cells) >= length)
        return next((growth for growth in map(self._over, stretches) if growth is not None), None)

    def _over(self, cells: list[tuple[int, int, int]]) -> Growth | None:
        size = len(cells) / PARTS
        if cells[-1][1] - min(least for _, least, _ in cells[: round(size)]) < LEAST_BYTES:
            return None
        parts = [cells[round(part * size) : round((part + 1) * size)] for part in range(PARTS)]
        floors = [min(least for _, least, _ in part) for part in parts]
        grown = floors[-1] - floors[0]
        steady = all(after - before > grown / PARTS / 4 for before, after in pairwise(floors))
        if not steady or grown < max(LEAST_BYTES, LEAST_GROWTH * floors[0]):
            return None
        elapsed = (parts[-1][0][0] - parts[0][0][0]) / 1e9
        if elapsed <= 0:
            # The clock was set back.
            return None
        return Growth(cells[0][2], cells[0][0], grown, cells[-1][1], self._total, grown / elapsed)


class GroupMemory(Finder):
    """The memory of all ranks, and the one whose growth is told."""

    kinds = (KIND,)

    def __init__(self, world: int) -> None:
        super().__init__()
        self._memory = [Memory() for _ in range(world)]
        self._growths: dict[int, Growth] = {}
        self._told: int | None = None
        """The rank that is named."""
        self._told_of_all = False
        self._first: Growth | None = None
        """The growth with which that began: the stretch that is looked at moves on."""
        self._urgent = False
        self._heard_at_ns = 0

    def take(self, beat: Beat) -> None:
        memory = self._memory[beat.rank]
        if not memory.take(beat):
            return
        growth = memory.growth()
        if growth is not None:
            self._growths[beat.rank] = growth
        elif self._growths.pop(beat.rank, None) is None:
            return
        self._heard_at_ns = beat.at_ns
        self.found = self._find()

    def _find(self) -> Verdict | None:
        """Tell of everybody, or of one rank; what is told stays the same as long as it can."""
        growths, world = self._growths, len(self._memory)
        before = (self._told_of_all, self._told)
        everybody = len(growths) == world > 1 or (self._told_of_all and len(growths) > world / 2)
        if everybody or not growths:
            named = None
        elif self._told in growths:
            named = self._told
        else:
            named = max(growths, key=lambda rank: growths[rank].bytes_per_s)
        self._told_of_all, self._told = everybody, named
        if before not in ((False, None), (everybody, named)):
            self.ceased_at_ns = self._heard_at_ns
        if not growths:
            self._urgent = False
            return None
        growth = growths[max(growths, key=lambda rank: growths[rank].bytes_per_s) if named is None else named]
        if self._first is None or before != (everybody, named):
            self._first = growth
        since_step = self._first.since_step
        self._urgent = growth.left_s is not None and growth.left_s < URGENT_S * (2 if self._urgent else 1)
        of = "every rank" if len(growths) == world > 1 else f"{plural(len(growths), 'rank')} of {world:,}"
        whose = f"the memory of {of if named is None else f'rank {named}'}"
        left = "" if growth.left_s is None else f", full in about {span(growth.left_s)}"
        rate = f"{size(int(growth.bytes_per_s * 60))} a minute"
        return Verdict(
            0,
            KIND,
            f"{whose} grows by {rate}, now {size(growth.bytes)}{left}, since step {since_step:,}",
            self._first.since_at_ns,
            rank=named,
            since_step=since_step,
            urgent=self._urgent,
        )
