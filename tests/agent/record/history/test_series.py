"""Buckets that are folded into wider ones, against the same steps kept whole."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ddptop.agent.record.history.packing import INDEX, packed, unpacked_cells
from ddptop.agent.record.history.series import Buckets, together


def buckets(steps: np.ndarray, values: np.ndarray, rank: int = 0, number: str = "loss") -> Buckets:
    """Return a bucket for each step."""
    cells = np.empty((1, 4, len(steps)), np.float32)
    cells[0, :3], cells[0, 3] = values, ~np.isnan(values)
    ranks, weight = np.full(len(steps), rank), np.ones(len(steps), np.float32)
    return Buckets((number,), ranks, steps.astype(np.int64), steps * 0.01, weight, cells)


@pytest.mark.parametrize("count", [1, 31, 1000, 20_000])
@pytest.mark.parametrize("bits", [2, 4])
def test_a_bucket_says_of_its_steps_what_the_steps_say(count: int, bits: int) -> None:
    """Least, greatest, mean and number, however the steps come in, and in how many turns they are folded."""
    rng = np.random.default_rng(count)
    steps = np.cumsum(rng.choice([1, 1, 1, 2, 7], count))
    values = rng.normal(size=count)
    values[rng.random(count) < 0.1] = np.nan
    parts = [buckets(steps[first::3], values[first::3]) for first in range(3)]
    folded = together([part.folded(bits - 2) for part in parts if len(part.ranks)]).folded(bits)
    numbers = (steps - 1) >> bits
    assert len(folded.keys) == len(set(numbers.tolist()))
    for key, at, weight, cell in zip(folded.keys.tolist(), folded.at, folded.weight, folded.cells[0].T, strict=True):
        inside = numbers == (key - 1) >> bits
        known = values[inside & ~np.isnan(values)]
        assert (key, weight) == (steps[inside].max(), inside.sum())
        assert at == steps[inside].max() * 0.01
        assert cell[3] == len(known)
        if len(known):
            assert cell[:3] == pytest.approx((known.mean(), known.min(), known.max()), rel=1e-4, abs=1e-5)
        else:
            assert np.isnan(cell[:3]).all()


def test_ranks_that_are_folded_together_are_as_they_are_alone() -> None:
    """Whatever ranks and numbers the parts have."""
    rng = np.random.default_rng(4)
    parts = [buckets(np.sort(rng.choice(500, 60, replace=False)) + 1, rng.normal(size=60), rank) for rank in (3, 0, 2)]
    more = buckets(np.arange(1, 40), np.ones(39), 0, "log.lr")
    all_of_them = together([*parts, more]).folded(4)
    for part in parts:
        alone = part.folded(4)
        mine = all_of_them.part((all_of_them.ranks == part.ranks[0]) & (all_of_them.cells[0, 3] > 0))
        assert np.array_equal(mine.keys, alone.keys)
        assert np.allclose(mine.cells[0], alone.cells[0])
    given = all_of_them.cells[1, 3]
    assert given.sum() == 39
    assert not given[all_of_them.ranks > 0].any()


def test_what_is_not_finite_stays_so_and_what_is_not_known_adds_nothing() -> None:
    """One infinite step makes its bucket infinite, in any company; unknown ones change no mean."""
    values = np.array([1, np.nan, np.nan, np.nan, np.inf, 2, np.nan, 3, 4, 5, np.nan, 9])
    folded = buckets(np.arange(1, 13), values).folded(2)
    assert folded.cells[0, 0].tolist() == [1, math.inf, 6]
    assert folded.cells[0, 3].tolist() == [1, 3, 3]


@pytest.mark.parametrize("values", [[1.0, 2.0], [1.0, math.nan], [math.inf, math.nan]])
@pytest.mark.parametrize("bits", [0, 1])
def test_a_number_is_read_from_its_bytes_as_it_was(values: list[float], bits: int) -> None:
    """Of single steps and of wide buckets; least and greatest only where they are kept."""
    found = buckets(np.array([1, 2]), np.array(values)).folded(bits)
    read = np.frombuffer(packed(found, ranged=True)[""], INDEX)
    assert np.array_equal(read["key"], found.keys)
    assert np.array_equal(read["weight"], found.weight)
    for ranged in (True, False):
        payload = packed(found, ranged=ranged)["loss"]
        cells = unpacked_cells(payload, found.weight)
        wanted = found.cells[0] if ranged else found.cells[0][[0, 0, 0, 3]]
        assert np.array_equal(cells, wanted, equal_nan=True)
    for odd in (payload[:-1], payload * 5, b""):
        with pytest.raises(ValueError, match=r"reshape|bytes|size|number"):
            unpacked_cells(odd, found.weight)
