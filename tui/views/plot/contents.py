"""The contents of a plot: lines with names and hues, limits, values to read off. Pure; draws nothing.

One rank is a line within its least and greatest; a few ranks are a line each, or like many ones their mean
in the band that holds them, with the chosen one in it. Imports NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from ddptop.agent.client.frame import Frame
from ddptop.agent.client.history.columns import Columns, Numbers, columns_of
from ddptop.agent.wire.steps.numbers import RECORDED
from ddptop.tui.drawing.theme import RANK_HUES
from ddptop.tui.model.metrics import Metric, metric_named
from ddptop.tui.views.plot import curves
from ddptop.tui.views.plot.curves import Floats
from ddptop.tui.views.plot.extent import Extent

_SCALES: Final = {
    "bytes": ((2.0**30, "GiB"), (2.0**20, "MiB")),
    "ms": ((1e4, "s"), (0.0, "ms")),
}
"""By a metric's unit, the units that it is shown in: the smallest value of each, and its name."""
_BAND: Final = ("max", "mean", "min")
_DIVISORS: Final = {"GiB": 2.0**30, "MiB": 2.0**20, "s": 1e3}


@dataclass
class Look:
    """Metric, extent and scale of a plot: held by a screen, changed by the keys of its plot."""

    metric: str = "loss"
    """One of `RECORDED`, or `CUSTOM` and a name."""
    extent: Extent = field(default_factory=Extent)
    chosen: bool = False
    """True where the user chose the metric."""
    names: Sequence[str] = ()
    """Names of the lines, where they are no ranks'."""
    over: str = "steps"
    """What is counted along the axis."""

    def follow(self, frame: Frame) -> None:
        """Where the user chose nothing, show the phase in which a rank is slow, else the loss."""
        if not self.chosen:
            phase = None if frame.verdict is None else frame.verdict.phase
            self.metric = phase if phase in RECORDED else "loss"


@dataclass(frozen=True)
class Line:
    """One line, in the unit of the plot."""

    name: str
    """The rank, or `min`, `mean`, `max`."""
    hue: str
    values: Floats
    faded: bool = False
    """True for a line behind the others."""

    @property
    def order(self) -> int:
        """Where its name stands among the others': the band from its upper edge down, or the ranks in order."""
        if self.name in _BAND:
            return -len(_BAND) + _BAND.index(self.name)
        return int(self.name) if self.name.isdigit() else 0


@dataclass(frozen=True)
class Contents:
    """Lines over one row of columns."""

    metric: Metric
    unit: str
    shown: tuple[int, int]
    """The first and the last step shown."""
    steps: Floats
    """The last step of each column."""
    at: Floats
    """When it ended, seconds since the epoch, on the rank that was last."""
    lines: tuple[Line, ...]
    """The line on top comes last."""
    broken: Floats
    """Steps where a value was not finite."""
    limits: tuple[float, float]
    """On the axis: powers of ten where it is logarithmic."""
    outside: tuple[float | None, float | None]
    """The least and the greatest value where these are out of the limits."""
    log: bool
    hidden: bool
    """True where values of zero or less have no place on a logarithmic axis."""

    def on_axis(self, line: Line) -> Floats:
        """Return a line's values as they are on the axis."""
        return _logged(line.values) if self.log else line.values

    def dots(self, width: int, height: int) -> tuple[bytes, ...]:
        """Return all that is drawn as it is in so many dots: what is the same in them looks the same."""
        low, high = self.limits
        across = width / (self.steps[-1] - self.steps[0])
        lines = [(self.on_axis(line) - low) * (height / (high - low)) for line in self.lines]
        columns = [(steps - self.steps[0]) * across for steps in (self.steps, self.broken)]
        return tuple(np.rint(each).tobytes() for each in (*lines, *columns))

    def column(self, step: float) -> int:
        """Return the column of a step, the nearest where it is not shown."""
        return min(int(np.searchsorted(self.steps, step)), len(self.steps) - 1)


def contents_of(
    history: Numbers, ranks: Sequence[int], chosen: int | None, run: tuple[int, int], look: Look, width: int
) -> Contents | None:
    """Return what to draw in so many columns at most.

    Args:
        history: what is known.
        ranks: whose lines.
        chosen: the rank whose line stands out.
        run: the first and the last step that may be seen; see `span_of`.
        look: metric, extent and scale.
        width: columns there are.

    Returns:
        None where there is nothing to draw: no two columns, or the metric is not known.
    """
    first, last = look.extent.steps(*run)
    drawn = columns_of(history, ranks, look.metric, first, last, width)
    if drawn.mean.shape[1] < 2 or np.isnan(drawn.mean).all():
        return None
    metric = metric_named(look.metric)
    divisor, unit = _scale(metric, drawn.high)
    drawn = drawn._replace(mean=drawn.mean / divisor, low=drawn.low / divisor, high=drawn.high / divisor)
    lines = _lines(drawn, ranks, chosen, look.extent)
    if look.names:
        lines = tuple(replace(line, name=look.names[int(line.name)]) for line in lines if line.name.isdigit())
    together = [_logged(line.values) if look.extent.log else line.values for line in lines]
    values = np.concatenate([line.values for line in lines])
    # All there is, where all was asked for; on a logarithmic axis outliers take little room.
    fit = curves.limits if look.extent.whole or look.extent.log else curves.usual_limits
    limits = fit(together)
    return Contents(
        metric=metric,
        unit=unit,
        shown=(first, last),
        steps=drawn.steps,
        at=np.fmax.reduce(drawn.at, axis=0),
        lines=lines,
        broken=drawn.steps[np.isinf(drawn.high).any(axis=0)],
        limits=limits,
        outside=_outside(np.concatenate(together), *limits),
        log=look.extent.log,
        hidden=look.extent.log and bool(np.any(values[~np.isnan(values)] <= 0)),
    )


def span_of(history: Numbers, ranks: Sequence[int], upto: int | None) -> tuple[int, int] | None:
    """Return the first and the last step known of any of the ranks; none after `upto`, where the view stands still."""
    spans = [span for rank in ranks if (span := history.span(rank)) is not None]
    if not spans:
        return None
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    last = last if upto is None else min(last, upto)
    return (first, last) if first <= last else None


def _lines(drawn: Columns, ranks: Sequence[int], chosen: int | None, extent: Extent) -> tuple[Line, ...]:
    smoothing = extent.smoothing
    if len(ranks) == 1:
        hue = _hue(ranks[0])
        whole = Line(str(ranks[0]), hue, curves.smoothed(drawn.mean[0], smoothing))
        if smoothing == "off" and np.array_equal(drawn.low, drawn.high, equal_nan=True):
            return (whole,)
        edges = (Line("min", "faint", drawn.low[0], True), Line("max", "faint", drawn.high[0], True))
        return (*edges, whole)
    if len(ranks) <= RANK_HUES and not extent.band:
        lines = [
            Line(str(rank), _hue(rank), curves.smoothed(values, smoothing), rank != chosen and chosen in ranks)
            for rank, values in zip(ranks, drawn.mean, strict=True)
        ]
        return tuple(sorted(lines, key=lambda line: line.name == str(chosen)))
    low, mean, high = curves.band(drawn)
    band = (
        Line("min", "faint", low, True),
        Line("max", "faint", high, True),
        Line("mean", "gauge", curves.smoothed(mean, smoothing)),
    )
    if chosen is None or chosen not in ranks:
        return band
    mine = curves.smoothed(drawn.mean[list(ranks).index(chosen)], smoothing)
    return (*band, Line(str(chosen), "rank-chosen", mine))


def _outside(values: Floats, low: float, high: float) -> tuple[float | None, float | None]:
    finite = values[np.isfinite(values)]
    least, greatest = (float(finite.min()), float(finite.max())) if len(finite) else (low, high)
    return least if least < low else None, greatest if greatest > high else None


def _hue(rank: int) -> str:
    return f"line-{rank % RANK_HUES}"


def _scale(metric: Metric, values: Floats) -> tuple[float, str]:
    finite = values[np.isfinite(values)]
    largest = float(np.abs(finite).max()) if len(finite) else 0.0
    for least, unit in _SCALES.get(metric.unit, ()):
        if largest >= least or unit == "MiB":
            return _DIVISORS.get(unit, 1.0), unit
    return 1.0, metric.unit


def _logged(values: Floats) -> Floats:
    positive = np.isfinite(values) & (values > 0)
    return np.log10(values, out=np.full_like(values, math.nan), where=positive)
