"""Growth of the memory of one rank, told from a use that has settled, by its heartbeats. Pure, bounded."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ddptop.agent.wire import Beat

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


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory that grew all the time it was looked at."""

    since_step: int
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
        if beat.memory_bytes is None or beat.step < 1:
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
        parts = [cells[round(part * size) : round((part + 1) * size)] for part in range(PARTS)]
        floors = [min(least for _, least, _ in part) for part in parts]
        grown = floors[-1] - floors[0]
        steady = all(after - before > grown / PARTS / 4 for before, after in pairwise(floors))
        if not steady or grown < max(LEAST_BYTES, LEAST_GROWTH * floors[0]):
            return None
        elapsed = (parts[-1][0][0] - parts[0][0][0]) / 1e9
        return Growth(cells[0][2], grown, cells[-1][1], self._total, grown / elapsed)
