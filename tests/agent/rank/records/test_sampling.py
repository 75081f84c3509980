"""The sample of steps: one in so many, on all ranks the same, and of every habit of a script as many as it has."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from ddptop.agent.rank.records.sampling import next_sampled

EVERY = (1, 2, 4, 8, 16, 32, 64)
STEPS = 64 * 3000


def sample(every: int) -> list[int]:
    """Return the sampled ones of the steps from 0 on, each found from the one before it."""
    found: list[int] = []
    while True:
        following = next_sampled(found[-1] + 1 if found else 0, every)
        if following >= STEPS:
            return found
        found.append(following)


@pytest.mark.parametrize("every", EVERY)
def test_one_of_each_so_many_steps_in_a_row(every: int) -> None:
    """Exactly one, wherever the search for it begins."""
    found = sample(every)
    assert [step // every for step in found] == list(range(STEPS // every))
    for begin in (0, 1, 7, 1000, 12_345, STEPS - 200):
        assert next_sampled(begin, every) == next(step for step in found if step >= begin)


def test_each_sample_is_part_of_the_larger_ones() -> None:
    """So ranks that sample differently for a while have steps in common."""
    samples = [set(sample(every)) for every in EVERY]
    for larger, smaller in pairwise(samples):
        assert smaller < larger


@pytest.mark.parametrize("every", EVERY[1:])
@pytest.mark.parametrize("habit", [2, 3, 4, 5, 8, 10])
def test_what_comes_in_every_so_manieth_step_comes_as_often_in_the_sample(every: int, habit: int) -> None:
    """Whatever the two numbers have in common: each of the steps of the habit has its share, within an eighth."""
    found = sample(every)
    shares = Counter(step % habit for step in found)
    for place in range(habit):
        assert shares[place] == pytest.approx(len(found) / habit, rel=1 / 8)


def test_it_does_not_follow_the_order_of_its_own_rows() -> None:
    """Whether the sampled step is early or late in its row says nothing of the next row, nor of the one after it."""
    late = [step % 64 >= 32 for step in sample(64)]
    for distance in (1, 2, 3, 4):
        same = sum(one == other for one, other in zip(late, late[distance:], strict=False))
        assert same == pytest.approx(len(late) / 2, rel=0.1)


def test_it_is_the_same_in_every_process_and_for_ever() -> None:
    """These numbers are what ranks, observers and recordings agree on: a change of them is a change of the protocol."""
    assert sample(64)[:8] == [25, 119, 189, 253, 281, 323, 439, 466]
