"""Curves as shapes of SVG: numbers become paths here, and texts stay texts for the template. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from ddptop.tui.cli.output.html.curves import Floats
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


class Shape(NamedTuple):
    """A path, and the class by which it has its color."""

    path: str
    kind: str


class Mark(NamedTuple):
    """A stretch of steps at which something was so."""

    x: float
    width: float
    kind: str
    text: str


class Tick(NamedTuple):
    """A tick of an axis."""

    at: float
    label: str


class Key(NamedTuple):
    """An entry of the legend."""

    kind: str
    label: str


@dataclass
class Plot:
    """One plot."""

    title: str
    unit: str
    note: str = ""
    shapes: list[Shape] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    x_ticks: list[Tick] = field(default_factory=list)
    y_ticks: list[Tick] = field(default_factory=list)


class Axes:
    """Where values are in a plot."""

    def __init__(self, steps: Floats, low: float, high: float, *, logarithmic: bool = False) -> None:
        """Make room for these steps, and for values from `low` to `high`."""
        self.last = float(steps[-1])
        # A run is shown from its start on, a record that begins late from there.
        self.first = 0.0 if steps[0] <= self.last / 10 else min(float(steps[0]), self.last - 1)
        self._logarithmic = logarithmic
        self.low, self.high = (math.log10(low), math.log10(high)) if logarithmic else (low, high)
        if self.high <= self.low:
            self.high = self.low + (abs(self.low) or 1.0) * 0.1

    def x(self, step: float) -> float:
        """Return where a step is."""
        part = (step - self.first) / (self.last - self.first)
        return round(LEFT + min(1.0, max(0.0, part)) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        """Return where a value is, at the edge where it is beyond that."""
        if self._logarithmic:
            value = math.log10(value) if value > 0 else self.low
        part = (value - self.low) / (self.high - self.low)
        return round(HEIGHT - BOTTOM - min(1.0, max(0.0, part)) * (HEIGHT - TOP - BOTTOM), 1)

    def x_ticks(self) -> list[Tick]:
        """Return the ticks of the steps."""
        ticks = [tick for tick in even_ticks(self.first, self.last, _TICKS_X) if tick == int(tick)]
        return [Tick(self.x(tick), f"{tick:,.0f}") for tick in ticks]

    def y_ticks(self) -> list[Tick]:
        """Return the ticks of the values."""
        if self._logarithmic:
            values = [10**tick for tick in decades(self.low, self.high, _TICKS_Y)]
            return [Tick(self.y(value), f"{value:g}") for value in values]
        values = even_ticks(self.low, self.high, _TICKS_Y)
        return [Tick(self.y(value), label) for value, label in zip(values, tick_labels(values), strict=True)]


def axes_for(steps: Floats, *tables: Floats, from_zero: bool) -> Axes:
    """Return axes with room for nearly all values of some tables."""
    known = np.concatenate([table[np.isfinite(table)].ravel() for table in tables])
    if not len(known):
        return Axes(steps, 0.0, 1.0)
    low, high = float(known.min()), float(np.quantile(known, _USUAL))
    if not from_zero and low > 0 and math.log10(max(high, low) / low) > _DECADES:
        return Axes(steps, low, float(known.max()), logarithmic=True)
    if from_zero:
        return Axes(steps, 0.0, 1.08 * high)
    room = 0.05 * (high - low)
    return Axes(steps, low - room, high + room)


def line(axes: Axes, steps: Floats, values: Floats) -> str:
    """Return a path through values; it is interrupted where one is not finite, or many in a row are not known."""
    known = ~np.isnan(values)
    steps, values = steps[known], values[known]
    # Not every step is recorded.
    apart = np.diff(steps)
    most = _GAP * float(np.median(apart)) if len(apart) else 0.0
    pieces, before = list[str](), -math.inf
    for step, value in zip(steps.tolist(), values.tolist(), strict=True):
        if math.isinf(value):
            before = -math.inf
            continue
        # A value alone is a point.
        place = f"{axes.x(step):g} {axes.y(value):g}"
        pieces.append(f"L{place}" if step - before <= most else f"M{place}h0")
        before = step
    return "".join(pieces)


def band(axes: Axes, steps: Floats, low: Floats, high: Floats) -> str:
    """Return a path around the values between two curves, as far as both are known."""
    known = np.isfinite(low) & np.isfinite(high)
    if not known.any():
        return ""
    there = [f"{axes.x(x):g} {axes.y(y):g}" for x, y in zip(steps[known].tolist(), high[known].tolist(), strict=True)]
    back = [f"{axes.x(x):g} {axes.y(y):g}" for x, y in zip(steps[known].tolist(), low[known].tolist(), strict=True)]
    return f"M{'L'.join([*there, *reversed(back)])}Z"


def bar(parts: Sequence[tuple[str, float]], width: float, most: float) -> list[tuple[float, float, str]]:
    """Return the parts of a bar: where each begins, how wide it is, and its class."""
    found, at = [], 0.0
    for kind, value in parts:
        if math.isfinite(value) and value > 0 and most > 0:
            found.append((round(at, 1), round(width * value / most, 1), kind))
            at += width * value / most
    return found
