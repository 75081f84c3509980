"""One heatmap as it is to be painted: the values in sight, their scale and their shades. Pure.

Imports NumPy, so it is loaded only when a heatmap is shown; knows neither colors nor cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from ddptop.agent.client.history.numbers import AskedTime
from ddptop.agent.wire.frames import NO_HOSTS, HostFrames
from ddptop.tui.model.metrics import METRICS
from ddptop.tui.views.heatmap import scale
from ddptop.tui.views.heatmap.scale import Cells

_LEAST: Final = 15
"""Buckets that a map is filled with at least."""


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
        hosts: HostFrames = NO_HOSTS,
        previous: HeatCells | None = None,
        fills: bool = False,
    ) -> None:
        """Take what is in sight; ranks stand in the order of their `hosts`, where there are several.

        Where it `fills` the width, a run that is shorter than that takes all of it.
        """
        self._by_time = by_time
        self._level = level
        self._last = last
        self.width = min(columns, by_time.columns)
        """Cells of the map."""
        values = by_time.window(metric, level, last, self.width)
        known = np.flatnonzero(~np.isnan(values).all(axis=0))
        begins = int(known[0]) if fills and len(known) else 0
        self.columns = max(min(_LEAST, self.width), self.width - begins)
        """Buckets in sight."""
        values = values[:, -self.columns :]
        self._ends = np.arange(self.columns + 1) * self.width // self.columns
        """The cell at which each bucket begins, and that at which the last one ends."""
        self._order, sizes = _order_of(hosts, by_time.world)
        """The rank at each place."""
        self._places = {rank: place for place, rank in enumerate(self._order)}
        if hosts.several:
            self.bands = scale.arrange_hosts(sizes, lines, halves=halves)
        else:
            self.bands = scale.arrange_bands(by_time.world, lines, halves=halves)
        in_order = isinstance(self._order, range)
        self._values: Cells = values if in_order or not len(values) else values[np.asarray(self._order)]
        rows = scale.reduce_bands(self._values, self.bands.group, self.bands.begins)
        scaled, self.longest = values, None
        """Length of a step, in ms, beyond which those in sight are not in the scale; None where there is none such."""
        if METRICS[metric].unit == "ms" and len(values):
            scaled, self.longest = scale.usual(values, by_time.window("step", level, last, self.columns))
        self.scale: scale.Scale | None = scale.scale_of(scaled, None if previous is None else previous.scale)
        self._shades = np.repeat(scale.shade(rows, self.scale, shades), np.diff(self._ends), axis=1)
        self._none = np.zeros(self.width, np.uint8)

    def _halves(self, line: int) -> tuple[scale.Shades, scale.Shades]:
        upper, lower = self.bands.of_line(line)
        return (
            self._none if upper is None else self._shades[upper],
            self._none if lower is None else self._shades[lower],
        )

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

    def cell_of(self, bucket: int) -> int:
        """Return the last of the cells of a bucket, for one out of sight that of the nearest."""
        column = max(0, min(self.columns - 1, bucket - self._last + self.columns - 1))
        return int(self._ends[column + 1]) - 1

    def bucket_at(self, cell: int) -> int:
        """Return the bucket that a cell belongs to."""
        column = int(np.searchsorted(self._ends, cell, side="right")) - 1
        return self._last - self.columns + 1 + column

    def value(self, rank: int, bucket: int) -> float | None:
        """Return a rank's value in a bucket, None where it is not known."""
        column, place = self._column(bucket), self.place_of(rank)
        if column is None or not 0 <= place < len(self._values):
            return None
        value = float(self._values[place, column])
        return None if math.isnan(value) else value

    def latest(self, rank: int) -> int:
        """Return the newest bucket in sight in which a rank's value is known; the last one where there is none."""
        place = self.place_of(rank)
        known = np.flatnonzero(~np.isnan(self._values[place : place + 1].ravel()))
        return self._last - self.columns + 1 + int(known[-1]) if len(known) else self._last

    def step(self, rank: int, bucket: int) -> int | None:
        """Return the number of the step in the middle of a bucket."""
        if not 0 <= rank < len(self._values):
            return None
        found = float(self._by_time.window("number", self._level, bucket, 1, rank)[0, 0])
        return round(found) if math.isfinite(found) else None

    def worst(self, band: int, bucket: int) -> tuple[int, float] | None:
        """Return the rank with the largest value of a band in a bucket, and that value."""
        rank = self.highest(bucket, self.bands.first(band), self.bands.until(band))
        value = None if rank is None else self.value(rank, bucket)
        return None if rank is None or value is None else (rank, value)

    def highest(self, bucket: int, first: int = 0, until: int | None = None) -> int | None:
        """Return the rank with the largest value in a bucket, of those from the place `first` up to `until`."""
        column = self._column(bucket)
        if column is None:
            return None
        values: Cells = self._values[first:until][:, column]
        return None if np.isnan(values).all() else self.rank_at(first + int(np.nanargmax(values)))

    def place_of(self, rank: int) -> int:
        """Return the place of a rank among all."""
        return self._places.get(rank, 0)

    def rank_at(self, place: int) -> int:
        """Return the rank at a place, the nearest one where there is none."""
        return self._order[max(0, min(len(self._order) - 1, place))]

    def band_of(self, rank: int) -> int:
        """Return the band that a rank is in."""
        return self.bands.band_of(self.place_of(rank))


def _order_of(hosts: HostFrames, world: int) -> tuple[Sequence[int], list[int]]:
    """Return the ranks, those of a host together, and how many each host has; those without a host come last."""
    order = [rank for host in hosts for rank in host.ranks if rank < world]
    sizes = [len(host.ranks) for host in hosts if host.ranks]
    rest = [rank for rank in range(world) if rank not in hosts.by_rank]
    if rest:
        sizes.append(len(rest))
    order += rest
    # As nearly always: nothing has to be moved.
    return range(world) if order == list(range(world)) else order, sizes
