"""The throughput of a rank in images a second, without start and evaluation, to compare techniques."""

from __future__ import annotations

import time


class Throughput:
    """Counts images from the end of one step to the end of a later one."""

    def __init__(self) -> None:
        self._begun: float | None = None
        self._ended = 0.0
        self._images = 0

    def add(self, images: int) -> None:
        """Count a step that has just ended; the first one only starts the clock."""
        self._ended = time.perf_counter()
        if self._begun is None:
            self._begun = self._ended
        else:
            self._images += images

    def since_last(self) -> float:
        """Return the images a second since the last call, 0 where there were fewer than two steps."""
        rate = 0.0 if self._begun is None or not self._images else self._images / (self._ended - self._begun)
        self._begun, self._images = None, 0
        return rate
