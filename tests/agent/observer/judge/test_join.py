"""Records of ranks, brought together by the number of their step."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop.agent.observer.judge.join import PENDING, StepJoin
from ddptop.agent.wire import Step


def step(number: int) -> Step:
    """Return a record of a step."""
    return Step(number, number, number, 1, 0, 1, 0, 0, 0, 0)


@settings(deadline=None, max_examples=60)
@given(
    told=st.lists(st.sets(st.integers(1, 12)), min_size=2, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_a_step_is_whole_once_and_when_the_last_rank_has_told_of_it(told: list[set[int]], order: Random) -> None:
    """Whatever the ranks leave out and however they overtake each other, whole are the steps that all have told of."""
    join = StepJoin(len(told))
    waiting = [sorted(numbers) for numbers in told]
    whole: list[int] = []
    while any(waiting):
        rank = order.choice([rank for rank, numbers in enumerate(waiting) if numbers])
        number = waiting[rank].pop(0)
        together = join.take(rank, step(number))
        if together is not None:
            assert {each.step for each in together.values()} == {number}
            assert set(together) == set(range(len(told)))
            whole.append(number)
    assert whole == sorted(set.intersection(*told))


def test_ranks_that_count_anew_are_compared_from_the_first_step_of_the_new_count_on() -> None:
    """However far one has counted before, and however late another begins."""
    join = StepJoin(2)
    for number in range(1, 31):
        join.take(0, step(number))
    for number in range(1, 41):
        join.take(1, step(number))
    found = [join.take(rank, step(number)) for number in range(1, 13) for rank in (0, 1)]
    assert [each is not None for each in found] == [False, True] * 12
    assert len(join._steps) == 0


def test_a_rank_that_is_silent_costs_no_memory() -> None:
    """Steps that never become whole are let go."""
    join = StepJoin(2)
    for number in range(1, 3 * PENDING):
        assert join.take(0, step(number)) is None
    assert len(join._steps) <= PENDING
