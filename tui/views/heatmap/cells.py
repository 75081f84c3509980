"""One heatmap as it is to be painted: the values in sight, their scale and their shades. Pure.

Imports NumPy, so it is loaded only when a heatmap is shown; knows neither colors nor cells.
"""

from __future__ import annotations

import math

import numpy as np

from ddptop.agent.observer.history.by_time import Array
from ddptop.tui.model.history.asked import AskedTime
from ddptop.tui.views.heatmap import scale


class HeatCells:
    """One number of all ranks over the buckets in sight."""

    def __init__(
        self,
        by_time: AskedTime,
        metric: str,
        level: int,
        last: int,
        columns: int,
        lines: int,
        *,
        halves: bool,
        shades: int,
        previous: HeatCells | None = None,
    ) -> None:
        self._by_time = by_time
        self._level = level
        self._last = last
        self.columns = min(columns, by_time.columns)
        self.bands = scale.arrange_bands(by_time.world, lines, halves=halves)
        self._values = by_time.window(metric, level, last, self.columns)
        rows = scale.reduce_bands(self._values, self.bands.group)
        self.scale: scale.Scale | None = scale.scale_of(self._values, None if previous is None else previous.scale)
        self._shades = scale.shade(rows, self.scale, shades)
        self._none = np.zeros(self.columns, np.uint8)

    def _halves(self, line: int) -> tuple[scale.Shades, scale.Shades]:
        upper, lower = self.bands.of_line(line)
        return self._shades[upper], self._none if lower is None else self._shades[lower]

    def key(self, line: int) -> tuple[bytes, bytes]:
        """Return all that a line's look depends on; equal keys look the same."""
        upper, lower = self._halves(line)
        return upper.tobytes(), lower.tobytes()

    def runs(self, line: int) -> list[tuple[int, int, int]]:
        """Return length, upper and lower shade of the runs of equal cells in a line."""
        return scale.runs(*self._halves(line))

    def _column(self, bucket: int) -> int | None:
        column = bucket - self._last + self.columns - 1
        return column if 0 <= column < self.columns else None

    def value(self, rank: int, bucket: int) -> float | None:
        """Return a rank's value in a bucket, None where it is not known."""
        column = self._column(bucket)
        if column is None or not 0 <= rank < len(self._values):
            return None
        value = float(self._values[rank, column])
        return None if math.isnan(value) else value

    def latest(self, rank: int) -> int:
        """Return the newest bucket in sight in which a rank's value is known; the last one where there is none."""
        known = np.flatnonzero(~np.isnan(self._values[rank : rank + 1].ravel()))
        return self._last - self.columns + 1 + int(known[-1]) if len(known) else self._last

    def step(self, rank: int, bucket: int) -> int | None:
        """Return the number of the step in the middle of a bucket."""
        if not 0 <= rank < len(self._values):
            return None
        found = float(self._by_time.window("number", self._level, bucket, 1, rank)[0, 0])
        return round(found) if math.isfinite(found) else None

    def worst(self, band: int, bucket: int) -> tuple[int, float] | None:
        """Return the rank with the largest value of a band in a bucket, and that value."""
        first = band * self.bands.group
        rank = self.highest(bucket, first, first + self.bands.group)
        value = None if rank is None else self.value(rank, bucket)
        return None if rank is None or value is None else (rank, value)

    def highest(self, bucket: int, first: int = 0, until: int | None = None) -> int | None:
        """Return the rank with the largest value in a bucket, of those from `first` up to `until`."""
        column = self._column(bucket)
        if column is None:
            return None
        values: Array = self._values[first:until][:, column]
        return None if np.isnan(values).all() else first + int(np.nanargmax(values))
