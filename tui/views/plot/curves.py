"""The arithmetic of a plot: series to one value a column, smoothing, the band of many ranks. Pure.

Knows neither colors nor cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ddptop.tui.model.history.series import Floats, Series

_INERTIA: Final = {"off": 0.0, "light": 0.6, "strong": 0.9}
"""Weight of the columns before, by the name of the smoothing; the rest is the next column's."""


class Columns(NamedTuple):
    """Some ranks' values over the same stretches of steps; NaN where a rank has none."""

    steps: Floats
    """The last step of each column."""
    at: Floats
    """(ranks, columns): when it ended there."""
    mean: Floats
    """(ranks, columns), as the two below."""
    low: Floats
    high: Floats


def stride_of(first: int, last: int, width: int) -> int:
    """Return how many steps share a column: a power of two, so that columns stay as they are when steps come."""
    return 1 << max(0, math.ceil(math.log2((last - first + 1) / max(1, width))))


def columns(
    ranks: Sequence[int], whose: npt.NDArray[np.int64], series: Series, first: int, last: int, stride: int
) -> Columns:
    """Return values with `stride` steps to a column, from step `first` to step `last`.

    Args:
        ranks: the rows to make.
        whose: by bucket of `series`, the rank that it is of.
        series: of these ranks, and maybe of others.
        first: the first step.
        last: the last step.
        stride: steps to a column.
    """
    begin = (first - 1) // stride
    count = (last - 1) // stride - begin + 1
    row_of = np.full(1 + max(*ranks, int(whose.max(initial=0)), 0), -1)
    row_of[list(ranks)] = np.arange(len(ranks))
    row = row_of[whose]
    # All ranks at once: a thousand, one by one, would hold up a key.
    inside = (row >= 0) & (series.steps >= first) & (series.steps <= last)
    together = series.part(inside)
    cell = row[inside] * count + (together.steps.astype(np.int64) - 1) // stride - begin
    low, high, at = (np.full(len(ranks) * count, np.nan) for _ in range(3))
    np.fmin.at(low, cell, together.low)
    np.fmax.at(high, cell, together.high)
    np.fmax.at(at, cell, together.at)
    weighed = np.where(together.count > 0, together.mean, 0.0) * together.count
    sums, known = (np.bincount(cell, of, len(low)) for of in (weighed, together.count))
    mean = np.where(known > 0, sums / np.maximum(known, 1), np.nan)
    steps = np.minimum((np.arange(count) + begin + 1) * stride, last).astype(np.float64)
    return Columns(steps, *(each.reshape(-1, count) for each in (at, mean, low, high)))


def band(drawn: Columns) -> tuple[Floats, Floats, Floats]:
    """Return least, median and greatest over the ranks: of all steps, of the means, of all steps."""
    with np.errstate(invalid="ignore"):
        ordered = np.sort(np.where(np.isfinite(drawn.mean), drawn.mean, np.nan), axis=0)
        counts = np.sum(~np.isnan(ordered), axis=0)
        where = np.arange(ordered.shape[1])
        lower, upper = np.maximum(counts - 1, 0) // 2, np.maximum(counts, 1) // 2
        median = (ordered[lower, where] + ordered[np.minimum(upper, len(ordered) - 1), where]) / 2
    return np.fmin.reduce(drawn.low, axis=0), median, np.fmax.reduce(drawn.high, axis=0)


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
    finite = [line[np.isfinite(line)] for line in lines]
    together = np.concatenate(finite) if finite else np.empty(0)
    if not len(together):
        return 0.0, 1.0
    low, high = float(together.min()), float(together.max())
    least = max(abs(low), abs(high)) * 1e-2 or 1.0
    if high - low < least:
        return low - least / 2, high + least / 2
    return low, high
