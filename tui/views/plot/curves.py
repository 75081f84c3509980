"""The arithmetic of a plot: smoothing, the band of many ranks, limits. Pure.

Knows neither colors nor cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ddptop.agent.client.history.columns import Columns

Floats = npt.NDArray[np.float64]

_PERCENTILE: Final = 2
"""Percent of a line's values at each end that do not make the range larger than the others need it."""
_LEEWAY: Final = 0.5
"""Share of the range between the percentiles by which the range of the axis is wider at most."""
_NEWEST: Final = 5
"""Columns at the end of a line whose median is always in range."""
_INERTIA: Final = {"off": 0.0, "light": 0.6, "strong": 0.9}
"""Weight of the columns before, by the name of the smoothing; the rest is the next column's."""


def band(drawn: Columns) -> tuple[Floats, Floats, Floats]:
    """Return least, mean and greatest over the ranks, in the columns that any of them has."""
    finite = np.isfinite(drawn.mean)
    with np.errstate(invalid="ignore"):
        mean = np.where(finite, drawn.mean, 0.0).sum(axis=0) / finite.sum(axis=0)
    return np.fmin.reduce(drawn.low, axis=0), mean, np.fmax.reduce(drawn.high, axis=0)


def smoothed(values: Floats, smoothing: str) -> Floats:
    """Return the exponential moving average over the columns, unbiased at its start; gaps stay gaps.

    The debiasing is that of Adam (https://arxiv.org/abs/1412.6980), as TensorBoard uses it for scalars.
    """
    inertia = _INERTIA[smoothing]
    if not inertia:
        return values
    out = np.full_like(values, np.nan)
    total = weight = 0.0
    for index, value in enumerate(values):
        if math.isfinite(value):
            total = inertia * total + (1 - inertia) * value
            weight = inertia * weight + (1 - inertia)
            out[index] = total / weight
        elif math.isinf(value):
            out[index] = value
    return out


def limits(lines: Sequence[Floats]) -> tuple[float, float]:
    """Return the range that holds all finite values, never empty."""
    finite = _finite(lines)
    if not finite:
        return 0.0, 1.0
    return _widened(min(float(line.min()) for line in finite), max(float(line.max()) for line in finite))


def usual_limits(lines: Sequence[Floats]) -> tuple[float, float]:
    """Return a range that fits the values of each line but for outliers, never empty.

    It holds the percentiles of each line, so that a line of its own is never out of range, and the newest values.
    """
    finite = _finite(lines)
    if not finite:
        return 0.0, 1.0
    ends = np.array([np.percentile(line, (_PERCENTILE, 100 - _PERCENTILE)) for line in finite])
    low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
    leeway = _LEEWAY * (high - low)
    newest = [float(np.median(line[-_NEWEST:])) for line in finite]
    return _widened(
        min(*newest, max(low - leeway, min(float(line.min()) for line in finite))),
        max(*newest, min(high + leeway, max(float(line.max()) for line in finite))),
    )


def _finite(lines: Sequence[Floats]) -> list[Floats]:
    finite = [line[np.isfinite(line)] for line in lines]
    return [line for line in finite if len(line)]


def _widened(low: float, high: float) -> tuple[float, float]:
    least = max(abs(low), abs(high)) * 1e-2 or 1.0
    if high - low < least:
        return low - least / 2, high + least / 2
    return low, high
