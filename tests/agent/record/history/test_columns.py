"""Columns of a plot, against plain loops over the steps; and their way over the wire."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from ddptop.agent.record.history.columns import Columns, fold, stride_of
from ddptop.agent.record.history.series import Series


def series(values: list[float], first: int = 1) -> Series:
    """Return single steps with these values."""
    array = np.array(values, float)
    steps = np.arange(first, first + len(values), dtype=float)
    return Series(steps, steps * 0.1, array, array, array, (~np.isnan(array)).astype(float))


def columns(values: list[float], first: int, last: int, stride: int) -> Columns:
    """Return the columns of one rank that has these values."""
    return fold([0], np.zeros(len(values), np.int64), series(values), first, last, stride)


def test_columns_hold_what_their_steps_hold() -> None:
    """Against a plain loop: mean, least and greatest of the steps of each column, none shared, none left out."""
    rng = random.Random(3)
    for _ in range(40):
        count = rng.randrange(2, 300)
        values = [math.nan if rng.random() < 0.2 else rng.uniform(-5, 5) for _ in range(count)]
        first = rng.randrange(1, count)
        last = rng.randrange(first, count + 1)
        stride = stride_of(first, last, rng.randrange(1, 100))
        drawn = columns(values, first, last, stride)
        groups: dict[int, list[float]] = {}
        for step in range(first, last + 1):
            groups.setdefault((step - 1) // stride, []).append(values[step - 1])
        assert drawn.mean.shape == (1, len(groups))
        for index, group in enumerate(groups.values()):
            known = [value for value in group if not math.isnan(value)]
            found = drawn.low[0, index], drawn.high[0, index], drawn.mean[0, index]
            assert drawn.known[0, index] == len(known)
            if known:
                assert found == pytest.approx((min(known), max(known), sum(known) / len(known)))
            else:
                assert all(math.isnan(value) for value in found)


def test_columns_stay_as_they_are_when_steps_come() -> None:
    """A plot of a moving run does not shimmer: all whole columns but the last are the same a step later."""
    values = [math.sin(step) for step in range(1000)]
    before = columns(values[:900], 1, 900, stride_of(1, 900, 70))
    after = columns(values[:905], 1, 905, stride_of(1, 905, 70))
    assert np.array_equal(before.mean[0, :-1], after.mean[0, : before.mean.shape[1] - 1])
