"""The numbers of a run over its steps, as shapes of SVG: numbers become paths here, and texts stay texts. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from ddptop.agent.client.history.columns import Columns, Floats
from ddptop.tui.drawing.ticks import decades, even_ticks, tick_labels

WIDTH: Final = 640
HEIGHT: Final = 220
LEFT: Final = 56
RIGHT: Final = 12
TOP: Final = 10
BOTTOM: Final = 28
_TICKS_X: Final = 6
_TICKS_Y: Final = 5
_USUAL: Final = 0.99
"""The part of a curve that its axis has to have room for: one long step must not flatten all others."""
_GAP: Final = 8
"""A curve goes on over so many times the usual distance of two values."""
_DECADES: Final = 1.5
"""Where positive values span so much, the axis is logarithmic."""

Tick = tuple[float, str]
"""Place and label."""


class Plot:
    """One plot: an axis of steps, one of values, and what is drawn in between.

    Its shapes, marks and legend are tuples that begin with the class by which each has its color.
    """

    def __init__(self, title: str, unit: str, steps: Floats, *tables: Floats, from_zero: bool = False) -> None:
        """Make room for these steps, and for nearly all values of some tables."""
        self.title, self.unit, self.note = title, unit, ""
        self.shapes: list[tuple[str, str]] = []
        """Class and path."""
        self.marks: list[tuple[str, float, float, str]] = []
        """Class, place, width and text."""
        self.keys: list[tuple[str, str]] = []
        """The legend: class and label."""
        self._steps = steps
        self.last = float(steps[-1])
        # A run is shown from its start on, a record that begins late from there.
        self.first = 0.0 if steps[0] <= self.last / 10 else min(float(steps[0]), self.last - 1)
        known = np.concatenate([np.zeros(0), *(table[np.isfinite(table)] for table in tables)])
        least, usual, most = np.quantile(known, (0.0, _USUAL, 1.0)).tolist() if len(known) else (0.0, 1.0, 1.0)
        self._is_by_decades = not from_zero and least > 0 and math.log10(max(usual, least) / least) > _DECADES
        if self._is_by_decades:
            self.low, self.high = math.log10(least), math.log10(most)
        else:
            room = 0.05 * (usual - least)
            self.low, self.high = (0.0, 1.08 * usual) if from_zero else (least - room, usual + room)
            if most > self.high > usual:
                top = f"{most:,.0f}" if most >= 1000 else f"{most:.3g}"
                self.note = f"cut at the top: up to {top} {unit}".rstrip()
        if self.high <= self.low:
            self.high = self.low + (abs(self.low) or 1.0) * 0.1

    def x(self, step: float) -> float:
        """Return where a step is."""
        part = (step - self.first) / (self.last - self.first)
        return round(LEFT + min(1.0, max(0.0, part)) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        """Return where a value is, at the edge where it is beyond that."""
        if self._is_by_decades:
            value = math.log10(value) if value > 0 else self.low
        part = (value - self.low) / (self.high - self.low)
        return round(HEIGHT - BOTTOM - min(1.0, max(0.0, part)) * (HEIGHT - TOP - BOTTOM), 1)

    @property
    def x_ticks(self) -> list[Tick]:
        """The ticks of the steps."""
        ticks = [tick for tick in even_ticks(self.first, self.last, _TICKS_X) if tick == int(tick)]
        return [(self.x(tick), f"{tick:,.0f}") for tick in ticks]

    @property
    def y_ticks(self) -> list[Tick]:
        """The ticks of the values."""
        if self._is_by_decades:
            values = [10**tick for tick in decades(self.low, self.high, _TICKS_Y)]
            return [(self.y(value), f"{value:g}") for value in values]
        values = even_ticks(self.low, self.high, _TICKS_Y)
        return [(self.y(value), label) for value, label in zip(values, tick_labels(values), strict=True)]

    def line(self, values: Floats, kind: str, label: str) -> None:
        """Draw a line; it is interrupted where a value is not finite, or many in a row are not known."""
        known = ~np.isnan(values)
        steps, values = self._steps[known], values[known]
        # Not every step is recorded.
        most = _GAP * float(np.median(np.diff(steps))) if len(steps) > 1 else 0.0
        pieces, before = list[str](), -math.inf
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            if math.isinf(value):
                before = -math.inf
                continue
            # A value alone is a point.
            place = f"{self.x(step):g} {self.y(value):g}"
            pieces.append(f"L{place}" if step - before <= most else f"M{place}h0")
            before = step
        self._add(f"line {kind}", "".join(pieces), kind, label)

    def band(self, low: Floats, high: Floats, kind: str, label: str, shape: str = "band") -> None:
        """Fill what is between two curves, as far as both are known."""
        known = np.isfinite(low) & np.isfinite(high)
        steps = self._steps[known].tolist()
        there, back = (
            [f"{self.x(step):g} {self.y(value):g}" for step, value in zip(steps, edge[known].tolist(), strict=True)]
            for edge in (high, low)
        )
        self._add(f"{shape} {kind}", f"M{'L'.join([*there, *reversed(back)])}Z" if steps else "", kind, label)

    def mark(self, kind: str, begin: float, end: float | None, least: float, text: str, label: str) -> None:
        """Mark the steps from one to another, up to the last one where that is None, `least` wide on the page."""
        at = self.x(begin)
        self.marks.append((kind, at, max(least, self.x(self.last if end is None else end) - at), text))
        self._explain(kind, label)

    def _add(self, shape: str, path: str, kind: str, label: str) -> None:
        self.shapes.append((shape, path))
        self._explain(kind, label)

    def _explain(self, kind: str, label: str) -> None:
        if (kind, label) not in self.keys:
            self.keys.append((kind, label))


def over_ranks(table: Floats, of: Callable[[Floats], np.float64]) -> Floats:
    """Return one value of each column, of the ranks that know it; NaN where none does."""
    known = [column[np.isfinite(column)] for column in table.T]
    return np.array([of(column) if len(column) else np.nan for column in known])


def mean_of(columns: Columns) -> Floats:
    """Return the mean of each rank over all steps; NaN where it is not known."""
    known = np.where(np.isfinite(columns.mean), columns.known, 0.0)
    total, count = (np.where(known > 0, columns.mean, 0.0) * known).sum(axis=1), known.sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1.0), np.nan)


def step_at(columns: Columns, at: float) -> float | None:
    """Return the step that the ranks had come to at a moment, in seconds since the epoch; None where none is known."""
    ends = over_ranks(columns.at, np.max)
    known = np.isfinite(ends)
    if not known.any():
        return None
    return float(np.interp(at, np.maximum.accumulate(ends[known]), columns.steps[known]))


def bar(parts: Sequence[tuple[str, float]], width: float, most: float) -> list[tuple[float, float, str]]:
    """Return the parts of a bar: where each begins, how wide it is, and its class."""
    found, at = [], 0.0
    for kind, value in parts:
        if math.isfinite(value) and value > 0 and most > 0:
            found.append((round(at, 1), round(width * value / most, 1), kind))
            at += width * value / most
    return found
