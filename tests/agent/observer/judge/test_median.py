"""The judge's own median against NumPy's."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop.agent.observer.judge.blocks import median, middle

NUMBERS = st.floats(-1e15, 1e15, allow_subnormal=False)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(NUMBERS, min_size=n, max_size=n), min_size=1, max_size=7)))
def test_it_is_the_median_of_numpy(rows: list[list[float]]) -> None:
    """Bit for bit, along both axes, of odd and of even numbers of values; the values stay as they are."""
    table = np.array(rows)
    before = table.copy()
    assert np.array_equal(median(table), np.median(table, axis=0))
    assert np.array_equal(median(table, 1), np.median(table, axis=1))
    assert middle(table[0]) == float(np.median(table[0]))
    assert np.array_equal(table, before)
