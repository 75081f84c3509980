"""Ticks of an axis: even, few enough, and told apart by their labels."""

from __future__ import annotations

import math
import random

import pytest

from ddptop.tui.drawing import ticks

STEPS = sorted(float(f"{part}e{power}") for power in range(-12, 16) for part in (1, 2, 5))


@pytest.mark.parametrize("seed", range(3))
def test_ticks_are_few_apart_and_short(seed: int) -> None:
    """Whatever the range: no more than there is room for, inside it, labels different and short."""
    rng = random.Random(seed)
    for _ in range(300):
        low = rng.uniform(-1, 1) * 10 ** rng.uniform(-6, 14)
        high = low + 10 ** rng.uniform(math.log10(abs(low)) - 1.5, 15)
        room = rng.randrange(2, 12)
        found = ticks.even_ticks(low, high, room)
        assert len(found) <= room
        assert all(low <= tick <= high for tick in found)
        labels = ticks.tick_labels(found)
        assert len(set(labels)) == len(found), (found, labels)
        assert all(len(label) <= ticks.LABEL for label in labels), labels
        low, high = sorted(rng.uniform(-12, 12) for _ in range(2))
        powers = ticks.decades(low, high, room)
        assert len(powers) <= room
        assert all(low <= power <= high for power in powers)


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0.02, 2.3, 10, [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2]),
        (0.02, 2.3, 6, [0.03, 0.1, 0.3, 1]),
        (1e-9, 1e3, 6, [1e-9, 1e-6, 1e-3, 1, 1e3]),
        (2.1, 4.4, 10, [2.5, 3, 3.5, 4]),
        (6.1, 6.4, 10, [6.1, 6.15, 6.2, 6.25, 6.3, 6.35, 6.4]),
    ],
)
def test_a_logarithmic_axis_has_ticks_at_round_values(
    low: float, high: float, most: int, expected: list[float]
) -> None:
    """1, 2, 5 times a power of ten where there is room; even values within a decade that has hardly any of these."""
    found = [10**tick for tick in ticks.decades(math.log10(low), math.log10(high), most)]
    assert found == pytest.approx(expected)
    assert len({f"{value:.4g}" for value in found}) == len(found)


def test_a_step_is_the_next_even_one() -> None:
    """1, 2 or 5 times a power of ten: the first in a list of them all that is large enough, also on the spot."""
    rng = random.Random(0)
    for least in (*STEPS[3:-3], *(10 ** rng.uniform(-11, 14) for _ in range(500))):
        expected = next(step for step in STEPS if step >= least)
        assert math.isclose(ticks.even_step(least), expected, rel_tol=1e-12), least


def test_an_axis_begins_with_a_tick() -> None:
    """From zero on the first tick is zero; an axis without a length has that one alone."""
    assert ticks.even_ticks(0.0, 0.0, 8) == [0.0]
    for length in (0.003, 0.7, 12.3, 102.0, 8_000.0, 1e7):
        found = ticks.even_ticks(0.0, length, 8)
        assert found[0] == 0.0
        assert 3 <= len(found) <= 8
