"""The arithmetic of the heatmap: ranks to bands, values to a scale, a scale to shades. Pure.

Imports NumPy, so it is loaded only when a heatmap is shown; knows neither colors nor cells.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ddptop.tui.drawing.ticks import even_step

Cells = npt.NDArray[np.float32]
Shades = npt.NDArray[np.uint8]

THICKEST: Final = 8
"""Half lines that a rank takes at most, where there are few."""
_LOW, _HIGH = 5.0, 95.0
"""Percentiles that the scale spans: one hiccup, or one rank of a thousand, does not wash out the rest."""
_LEAST_SPAN: Final = 0.3
"""The scale spans at least this share of the median, so that noise looks calm."""
_LOOKED_AT: Final = 20_000
"""Values that percentiles are taken of, at most."""
_STEPS: Final = 8
_LONG: Final = 3.0
"""Times the median length of a step beyond which the scale leaves a step out: it evaluates, or saves."""
UNKNOWN: Final = 0
"""The shade of a value that is not known; the others count from 1, and the one after the last is for infinity."""


class Bands(NamedTuple):
    """How ranks share the lines there are. Places are those of ranks in their order, which is that of their hosts."""

    group: int
    """Ranks in one band, at most; more than one where there are more ranks than room."""
    rows: int
    thickness: int
    """Half lines a band takes: 1, or an even number."""
    begins: tuple[int, ...] = ()
    """The place at which each band begins, and the one after the last; empty where each has `group` ranks."""
    halves: tuple[tuple[int | None, int | None], ...] = ()
    """By line, its upper and lower band, None twice for a line between hosts; empty where bands follow each other."""
    names: Mapping[int, int] = {}
    """By line, the host that begins on it."""
    shared: int = 1
    """Hosts in one band."""

    @property
    def lines(self) -> int:
        """Lines that all bands take."""
        return len(self.halves) or -(-self.rows * self.thickness // 2)

    def of_line(self, line: int) -> tuple[int | None, int | None]:
        """Return the bands in the upper and lower half of a line, None below the last one and between hosts."""
        if self.halves:
            return self.halves[line]
        upper, lower = (2 * line) // self.thickness, (2 * line + 1) // self.thickness
        return upper, lower if lower < self.rows else None

    def begins_on(self, line: int) -> bool:
        """Say whether the upper band of a line begins there."""
        return not line or self.of_line(line)[0] != self.of_line(line - 1)[0]

    def first(self, band: int) -> int:
        """Return the place at which a band begins."""
        return self.begins[band] if self.begins else band * self.group

    def until(self, band: int) -> int:
        """Return the place after the last one of a band."""
        return self.begins[band + 1] if self.begins else (band + 1) * self.group

    def band_of(self, place: int) -> int:
        """Return the band of a place."""
        return bisect_right(self.begins, place) - 1 if self.begins else place // self.group


def arrange_bands(ranks: int, lines: int, *, halves: bool = True) -> Bands:
    """Return how so many ranks are shown on so many lines; without `halves` a band takes whole lines."""
    room = max(1, 2 * lines if halves else lines)
    group = max(1, math.ceil(ranks / room))
    count = math.ceil(ranks / group)
    each = (2 * lines) // max(1, count)
    if not halves or each > 1:
        return Bands(group, count, max(2, min(THICKEST, each // 2 * 2)))
    return Bands(group, count, 1)


def arrange_hosts(sizes: Sequence[int], lines: int, *, halves: bool = True) -> Bands:
    """Return how the ranks of several hosts are shown on so many lines: no band and no line has ranks of two hosts.

    Between hosts stands a line, where that is to be had without showing several ranks as one. Where there are more
    hosts than lines, a band is one host or more of them.
    """
    if len(sizes) > lines:
        whole = arrange_bands(len(sizes), lines, halves=halves)
        ends = [0, *itertools.accumulate(sizes)]
        begins = (*ends[: len(sizes) : whole.group], ends[-1])
        largest = max(until - since for since, until in itertools.pairwise(begins))
        pairs = [whole.of_line(line) for line in range(whole.lines)]
        names = {
            line: band * whole.group
            for line, (band, _) in enumerate(pairs)
            if band is not None and (not line or band != pairs[line - 1][0])
        }
        return Bands(largest, whole.rows, whole.thickness, begins, tuple(pairs), names, whole.group)
    for group in itertools.count(1):
        rows = [math.ceil(size / group) for size in sizes]
        thick = [(each, between) for between in (1, 0) for each in range(THICKEST if group == 1 else 2, 0, -2)]
        for thickness, between in [*thick, *(((1, 1), (1, 0)) if halves else ())]:
            if sum(-(-row * thickness // 2) for row in rows) + between * (len(sizes) - 1) <= lines:
                return _laid(sizes, group, thickness, between)
    raise AssertionError("a host takes a line at least")


def _laid(sizes: Sequence[int], group: int, thickness: int, between: int) -> Bands:
    begins: list[int] = []
    pairs: list[tuple[int | None, int | None]] = []
    names: dict[int, int] = {}
    at = 0
    for host, size in enumerate(sizes):
        if pairs:
            pairs += [(None, None)] * between
        names[len(pairs)] = host
        first, count = len(begins), math.ceil(size / group)
        begins += range(at, at + size, group)
        own = [first + half // thickness if half < count * thickness else None for half in range(count * thickness + 1)]
        pairs += [(own[half], own[half + 1]) for half in range(0, count * thickness, 2)]
        at += size
    return Bands(group, len(begins), thickness, (*begins, at), tuple(pairs), names)


def reduce_bands(values: Cells, group: int, begins: Sequence[int] = ()) -> Cells:
    """Return one row for each `group` ranks, the largest of their values: what is slow stays in sight.

    Where bands begin at certain places, `begins` has these, and the place after the last.
    """
    if group <= 1 or not len(values):
        return values
    starts = np.asarray(begins[:-1]) if begins else np.arange(0, len(values), group)
    reduced: Cells = np.fmax.reduceat(values, starts, axis=0)
    return reduced


def usual(values: Cells, lengths: Cells) -> tuple[Cells, float | None]:
    """Return the values of steps of usual length, each step once, and the length beyond which some are left out.

    Args:
        values: by rank and bucket.
        lengths: of the steps there, in ms; equal in neighbouring buckets where one step fills both.
    """
    once = np.ones(lengths.shape, np.bool_)
    once[:, 1:] = lengths[:, 1:] != lengths[:, :-1]
    known = lengths[once & np.isfinite(lengths)]
    if not len(known):
        return values, None
    most = _LONG * float(np.median(known[:: max(1, len(known) // _LOOKED_AT)]))
    return values[once & (lengths <= most)], most if (known > most).any() else None


class Scale(NamedTuple):
    """The values of the first and the last shade; values outside look like them."""

    low: float
    high: float


def scale_of(values: Cells, previous: Scale | None = None) -> Scale | None:
    """Return a scale for these values, the `previous` one as long as it does for them; None without a value."""
    seen = values[np.isfinite(values)]
    if not len(seen):
        return previous
    # The difference of two values may be larger than any float32.
    seen = seen[:: max(1, len(seen) // _LOOKED_AT)].astype(np.float64)
    low, middle, high = (float(value) for value in np.percentile(seen, (_LOW, 50.0, _HIGH)))
    span = max(high - low, _LEAST_SPAN * abs(middle), 1e-9)
    # Even numbers at the ends, which stay for a while, or the colors would shimmer.
    if previous is not None:
        before = previous.high - previous.low
        if previous.low <= low and high <= previous.high and span >= 0.4 * before:
            return previous
    step = even_step(span / _STEPS)
    start = math.floor(low / step) * step
    return Scale(start, math.ceil(max(high, low + span) / step) * step)


def shade(values: Cells, scale: Scale | None, shades: int) -> Shades:
    """Return a number for each value: `UNKNOWN`, 1 to `shades`, or `shades` + 1 for what is not finite."""
    result = np.full(values.shape, UNKNOWN, np.uint8)
    known = np.isfinite(values)
    if scale is not None:
        share = (values[known].astype(np.float64) - scale.low) / (scale.high - scale.low)
        result[known] = 1 + np.clip(share * shades, 0, shades - 1).astype(np.uint8)
    result[np.isinf(values)] = shades + 1
    return result


def runs(upper: Shades, lower: Shades) -> list[tuple[int, int, int]]:
    """Return (length, upper, lower) of each run of equal cells in a line."""
    pairs = upper.astype(np.uint16) << 8 | lower
    ends = np.flatnonzero(np.diff(pairs)) + 1
    edges = [0, *ends.tolist(), len(pairs)]
    return [
        (until - since, int(upper[since]), int(lower[since]))
        for since, until in itertools.pairwise(edges)
        if until > since
    ]
