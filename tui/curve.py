"""A series over a whole run in bounded memory: old points are averaged, never dropped."""

from __future__ import annotations

import math

POINTS = 240


class Curve:
    """A series of (step, value), at most `2 * POINTS` of them however long the run."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []
        self._stride = 1
        self._bucket: list[float] = []

    def add(self, step: int, value: float) -> None:
        """Append a value; steps come in rising order. NaN and infinity stay visible."""
        self._bucket.append(value)
        if len(self._bucket) < self._stride:
            return
        self._points.append((step, _mean(self._bucket)))
        self._bucket.clear()
        if len(self._points) >= 2 * POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [(late, _mean([a, b])) for (_, a), (late, b) in pairs]
            self._stride *= 2

    def points(self) -> tuple[tuple[int, float], ...]:
        """Return (step, mean value up to that step since the point before), oldest first."""
        return tuple(self._points)


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else sum(values)
