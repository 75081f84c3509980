"""Intervals of correlated steps, against the theory of such series and against how far they are really off."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ddptop.agent.client.comparison.statistics import block_length, change, estimate, middle, p50, p95, reach


def correlated(random: np.random.Generator, steps: int, memory: float) -> np.ndarray:
    """Return a series whose neighbours have so much in common, of deviation 1, around 100."""
    found = np.empty(steps)
    value = random.normal()
    for index in range(steps):
        value = memory * value + math.sqrt(1 - memory**2) * random.normal()
        found[index] = value
    return 100 + found


def test_the_error_of_independent_steps_is_that_of_theory() -> None:
    """That of a median is 1.25 deviations by the root of the steps, that of a mean one."""
    series = np.random.default_rng(3).normal(100, 10, 2000)
    assert estimate(series, p50).error == pytest.approx(1.2533 * 10 / math.sqrt(2000), rel=0.3)
    assert estimate(series, middle).error == pytest.approx(10 / math.sqrt(2000), rel=0.3)
    assert estimate(series, p95).value == pytest.approx(np.quantile(series, 0.95), rel=1e-3)


def test_steps_that_depend_on_their_neighbours_are_drawn_in_longer_blocks() -> None:
    """So the interval of a mean holds its true value as often as it says, where single steps would fail."""
    random = np.random.default_rng(1)
    assert block_length(correlated(random, 1000, 0.0)) <= 3
    assert block_length(correlated(random, 1000, 0.9)) > 15
    assert block_length(random.integers(0, 2, 1000).astype(float)) <= 3
    found = [estimate(correlated(random, 800, 0.8), middle) for _ in range(100)]
    assert sum(abs(each.value - 100) < 3 * each.error for each in found) >= 96
    assert sum(abs(each.value - 100) < 3 / math.sqrt(800) for each in found) < 85


def test_stretches_of_slow_steps_are_seen_beside_single_ones_that_are_far_longer() -> None:
    """The error of a middle is that by which the middles of such series differ from each other."""
    random, found = np.random.default_rng(5), []
    for _ in range(100):
        stretches = np.repeat(random.normal(0, 1, 40), 20)
        spikes = np.where(random.random(800) < 0.05, random.exponential(200, 800), 0)
        found.append(estimate(100 + stretches + random.normal(0, 1, 800) + spikes, middle))
    assert np.mean([each.error for each in found]) == pytest.approx(np.std([each.value for each in found]), rel=0.3)


def test_a_drift_as_long_as_the_run_widens_the_interval() -> None:
    """Parts of the run that differ by more than noise say that another run will differ, too."""
    random = np.random.default_rng(2)
    steady = random.normal(100, 1, 600)
    drifting = steady + np.linspace(0, 10, 600)
    assert estimate(drifting, p50).error > 10 * estimate(steady, p50).error


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1.0, 1368.3), (2.0, 46.36), (4.0, 10.50), (9.0, 5.35), (29.9, 3.93), (30.1, 3.93), (1e9, 3.5)],
)
def test_an_interval_is_that_of_students_t(freedom: float, expected: float) -> None:
    """One in 2,150 lies outside, of whatever is known by few numbers as well."""
    assert reach(freedom) == pytest.approx(expected, rel=5e-3)


def test_a_change_is_told_from_the_size_of_the_noise_on() -> None:
    """And one with a floor only beyond that."""
    random = np.random.default_rng(4)
    one, same, longer = (estimate(random.normal(mean, 5, 1000), p50) for mean in (100, 100, 105))
    for other, told in ((same, False), (longer, True)):
        found = change(one, other)
        assert found is not None
        assert found.is_told is told
    floored = change(one, longer, floor=0.1)
    assert floored is not None
    assert not floored.is_told
