"""Intervals of numbers over steps, whose neighbours are not independent of each other. Pure.

Steps are drawn again in blocks, so that a stretch of slow ones stays together (block bootstrap: Künsch 1989). The
length of the blocks follows from the autocorrelation (Politis and White 2004, with the correction of Patton, Politis
and White 2009). A drift as slow as the run is long is in no block: the spread of a few long parts of the run shows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final, NamedTuple

import numpy as np

from ddptop.agent.record.history.series import Floats

DRAWS: Final = 200
"""Times that a series is drawn again."""
PARTS: Final = 6
"""Long parts of a run whose spread shows a drift."""
LEAST: Final = 60
"""Steps below which nothing can be told."""
_Z: Final = 3.5
"""Standard errors of an interval: one in 2,100 of what is equal lies outside."""
_DRIFTS: Final = 3.0
"""Times the variance by noise from which on that of the parts is a drift: one in 100 of what has none exceeds it."""
_MANY: Final = 30.0
"""Degrees of freedom from which on an expansion of Student's t is as good as t itself."""
_SEED: Final = 1

Statistic = Callable[[Floats, Floats], Floats]
"""Takes rising numbers, and for each draw the weight of each of them, (draws, steps), to one number a draw."""


def _quantile(part: float, ordered: Floats, weights: Floats) -> Floats:
    reached = np.cumsum(weights, axis=1)
    found: Floats = ordered[np.argmax(reached >= part * reached[:, -1:], axis=1)]
    return found


p50: Final[Statistic] = partial(_quantile, 0.5)
"""The median."""
p95: Final[Statistic] = partial(_quantile, 0.95)
"""The 95th percentile."""


def middle(ordered: Floats, weights: Floats) -> Floats:
    """Return the mean without the lowest and the highest tenth: a few long steps do not move it."""
    reached = np.cumsum(weights, axis=1)
    whole = reached[:, -1:]
    inside = np.clip(reached, 0.1 * whole, 0.9 * whole) - np.clip(reached - weights, 0.1 * whole, 0.9 * whole)
    found: Floats = inside @ ordered / (0.8 * whole[:, 0])
    return found


class Estimate(NamedTuple):
    """A number of a run, and how far it may be off."""

    value: float
    error: float
    """Standard error."""
    freedom: float
    """Independent blocks behind it, less one."""

    @property
    def within(self) -> float:
        """Half of its interval."""
        return reach(self.freedom) * self.error


def block_length(series: Floats) -> int:
    """Return how many neighbouring steps are drawn together, by their order in size: beside a few steps that are many
    times as long as others, stretches in which all are a little longer would not show in the values themselves.
    """
    count = len(series)
    most = max(1, count // 8)
    _, place, times = np.unique(series, return_inverse=True, return_counts=True)
    # Equal ones have the same place, the middle of theirs.
    centred = (np.cumsum(times) - (times + 1) / 2)[place] - (count - 1) / 2
    power = float(np.dot(centred, centred)) / count
    if count < 16 or power <= 0:
        return 1
    lags = min(most, 10 * math.ceil(math.log10(count)) + math.ceil(math.sqrt(count)))
    covariance = np.array([float(np.dot(centred[: count - lag], centred[lag:])) / count for lag in range(lags + 1)])
    small = np.abs(covariance[1:] / power) < 2 * math.sqrt(math.log10(count) / count)
    quiet = max(5, math.ceil(math.sqrt(math.log10(count))))
    runs = np.convolve(small, np.ones(quiet), "valid") == quiet
    last = int(np.argmax(runs)) if runs.any() else len(small)
    reach = min(lags, max(1, 2 * last))
    lag = np.arange(1, reach + 1)
    kernel = np.clip(2 * (1 - lag / reach), 0, 1)
    bent = 2 * float(np.sum(kernel * lag * covariance[1 : reach + 1]))
    flat = power + 2 * float(np.sum(kernel * covariance[1 : reach + 1]))
    if flat <= 0:
        return 1
    length = (2 * bent**2 / (4 / 3 * flat**2)) ** (1 / 3) * count ** (1 / 3)
    return int(min(most, max(1, math.ceil(length))))


def estimate(series: Floats, statistic: Statistic) -> Estimate:
    """Return a number of a series, with the error that its noise leaves it."""
    count, order = len(series), np.argsort(series, kind="stable")
    ordered, length = series[order], block_length(series)
    value = float(statistic(ordered, np.ones((1, count)))[0])
    if count < 2:
        return Estimate(value, 0.0, 1.0)
    noise = float(np.std(statistic(ordered, _weights(count, length)[:, order]), ddof=1)) ** 2
    freedom, drift = max(1.0, count / length - 1), 0.0
    if count >= LEAST:
        parts = np.repeat(np.eye(PARTS), [len(each) for each in np.array_split(series, PARTS)], axis=1)
        spread = float(np.var(statistic(ordered, parts[:, order]), ddof=1))
        # So far as the parts differ by more than noise makes them, another run will differ from this one.
        drift = spread - PARTS * noise if spread > _DRIFTS * PARTS * noise else 0.0
    return Estimate(value, math.sqrt(noise + drift), _freedom((noise, freedom), (drift, PARTS - 1.0)))


def _weights(count: int, length: int) -> Floats:
    """Return how often each step is drawn, (draws, steps): in blocks of that length, on a circle."""
    random = np.random.default_rng(_SEED)
    blocks = -(-count // length)
    starts = random.integers(0, count, (DRAWS, blocks)) + np.arange(DRAWS)[:, None] * count
    begun = np.bincount(starts.ravel(), minlength=DRAWS * count).reshape(DRAWS, count)
    reached = np.cumsum(np.concatenate((begun[:, count - length + 1 :], begun), axis=1), axis=1)
    drawn: Floats = reached[:, length - 1 :].astype(np.float64)
    drawn[:, 1:] -= reached[:, : count - 1]
    return drawn


def _freedom(*parts: tuple[float, float]) -> float:
    """Return the freedom of a sum of variances, each with its own (Welch and Satterthwaite)."""
    below = sum(variance**2 / freedom for variance, freedom in parts)
    return sum(variance for variance, _ in parts) ** 2 / below if below > 0 else 1e9


@lru_cache(maxsize=256)
def reach(freedom: float) -> float:
    """Return the standard errors of an interval: more of them where few blocks are behind the error (Student's t)."""
    freedom = max(1.0, freedom)
    if freedom < _MANY:
        # With t = √freedom / tan(angle) its density is a power of the sine; the expansion is far too short here.
        angles = np.linspace(0, math.pi / 2, 10_001)
        density = np.sin(angles) ** (freedom - 1)
        below = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
        return math.sqrt(freedom) / math.tan(float(np.interp(math.erfc(_Z / math.sqrt(2)) * below[-1], below, angles)))
    return _Z + (_Z**3 + _Z) / (4 * freedom) + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * freedom**2)


class Change(NamedTuple):
    """The difference between two estimates, as a part of the first."""

    part: float
    within: float
    """It is at most so far from that, on either side."""

    @property
    def is_told(self) -> bool:
        """True where noise alone makes no such difference."""
        return abs(self.part) > self.within


def change(first: Estimate | None, second: Estimate | None, floor: float = 0.0) -> Change | None:
    """Return the difference between two runs; None where one is not known, or the first has nothing to be a part of.

    Args:
        first: that of the run compared with.
        second: that of the other run.
        floor: the part by which such runs differ anyway.
    """
    if first is None or second is None or not (first.value > 0 and math.isfinite(second.value)):
        return None
    ratio = second.value / first.value
    # The errors of both, as parts of the first.
    mine, other = first.error * ratio / first.value, second.error / first.value
    freedom = _freedom((mine**2, first.freedom), (other**2, second.freedom))
    return Change(ratio - 1, math.hypot(reach(freedom) * math.hypot(mine, other), floor))
