"""A rank chooses how many steps it records where nobody can have told it yet: at first, and when steps become long."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from support.fakes.clocks import Clock

from ddptop.agent.rank.records.own_rate import BACK_NS, LOOKS, MOST_STEPS, REST_NS, OwnRate
from ddptop.agent.wire import Step

MS = 1_000_000


def rank(recorded_ns: int | None = 60_000, counted_ns: int | None = None) -> Any:
    """Return as much of a rank's stamps as the choice looks at."""
    cost = SimpleNamespace(recorded_ns=recorded_ns, counted_ns=counted_ns)
    return SimpleNamespace(every=1, steps=0, clock=Clock(0), cost=cost)


def steps(count: int, ms: float) -> list[Step]:
    return [Step(number, number, 0, round(ms * MS), 0, 0, 0, 0, 0, 0) for number in range(1, count + 1)]


@pytest.mark.parametrize(("ms", "fewest", "most"), [(1.0, 8, 64), (3.0, 2, 8), (20.0, 1, 1)])
def test_after_half_a_second_the_budget_is_kept(ms: float, fewest: int, most: int) -> None:
    """Not before, and by what a usual step takes: the first ones, which are far longer, change nothing."""
    stamps = rank()
    choice = OwnRate(stamps)
    choice.begin(steps(3, 150.0), 50_000)
    choice.begin(steps(40, ms), 50_000)
    assert stamps.every == 1
    assert not choice.is_over
    choice.begin(steps(60, ms), 50_000)
    assert fewest <= stamps.every <= most
    assert choice.is_over


def test_nothing_is_chosen_where_the_cost_is_not_known() -> None:
    """Neither that of the hooks nor that of a record is guessed, and what is remembered meanwhile is bounded."""
    for stamps, record_ns in ((rank(None), 50_000), (rank(), None)):
        choice = OwnRate(stamps)
        for _ in range(10):
            choice.begin(steps(1000, 1.0), record_ns)
        assert (stamps.every, choice.is_over) == (1, False)
        assert len(choice._walls) == MOST_STEPS


def test_who_was_told_a_number_chooses_none() -> None:
    """Whatever the steps take."""
    stamps = rank()
    choice = OwnRate(stamps)
    choice.order(2)
    choice.begin(steps(1000, 1.0), 50_000)
    assert stamps.every == 2


class Training:
    """A rank that was told to record one step in 64 of 1.4 ms, and is looked at ten times a second."""

    def __init__(self, *, is_fixed: bool = False) -> None:
        self.stamps = rank(60_000, 20_000)
        self.stamps.every = 64
        self.choice = OwnRate(self.stamps, is_fixed=is_fixed)
        if not is_fixed:
            self.choice.order(64)
        self.look(1.4, seconds=2)

    def look(self, ms: float, seconds: float, *, is_held: bool = False) -> list[int]:
        """Make steps of this length, 0: none, and return how many were recorded after each look."""
        found, time_ms = [], 0.0
        for _ in range(round(10 * seconds)):
            time_ms += 100
            made = int(time_ms / ms) if ms else 0
            time_ms -= made * ms
            self.stamps.steps += made
            self.stamps.clock.now += 100 * MS
            self.choice.look(50_000, is_held=is_held)
            found.append(self.stamps.every)
        return found

    def alternate(self, lengths: Iterable[float]) -> set[int]:
        return {every for ms in lengths for every in self.look(ms, 0.1)}


@pytest.mark.parametrize("ms", [5.0, 16.4, 90.0, 900.0])
def test_steps_that_have_become_far_longer_are_recorded_more_often_soon(ms: float) -> None:
    """After three looks that found some: records are then no further apart than a verdict needs, or each step is."""
    training = Training()
    found = training.look(ms, seconds=4)
    looks = max(LOOKS, LOOKS * ms / 100) + 2
    assert found[-1] * ms <= max(160, ms)
    assert set(found[round(looks) :]) == {found[-1]}
    assert found[0] == found[1] == 64


@pytest.mark.parametrize("part", [0.1, 0.4, 0.7, 0.95])
def test_a_delay_that_begins_between_two_looks_leads_to_the_same_number(part: float) -> None:
    """The look in which it begins finds steps that are only partly so long."""
    whole, mixed = Training(), Training()
    for _ in range(2):
        whole.look(6.4, seconds=0.4)
    mixed.look(1.4 + part * 5, seconds=0.1)
    assert mixed.look(6.4, seconds=0.5)[-1] == whole.stamps.every < 16


def test_within_a_second_the_number_falls_as_far_as_the_steps_grow() -> None:
    """What grows later is left to the observer."""
    for seconds, is_soon in ((0.4, True), (2.0, False)):
        training = Training()
        before = training.look(6.4, seconds=seconds)[-1]
        after = training.look(90.0, seconds=1.0)[-1]
        assert before < 64
        assert (after == 1) is is_soon
        assert is_soon or after == before


def test_steps_that_are_not_twice_as_long_are_left_to_the_observer() -> None:
    """And those, too, whose records come often enough all the same."""
    training = Training()
    assert set(training.look(2.6, seconds=10)) == {64}
    training.choice.order(4)
    training.look(1.4, seconds=2)
    assert set(training.look(30.0, seconds=10)) == {4}


def test_an_evaluation_is_no_long_step() -> None:
    """Neither one that lasts, nor one in every other tenth of a second."""
    training = Training()
    for _ in range(5):
        assert set(training.look(0, seconds=30) + training.look(1.4, seconds=1)) == {64}
    assert training.alternate([1.4, 40.0] * 50) == {64}
    # Also where records have come rarely all the time, because they are dear.
    training.choice.order(32)
    training.choice.order(64)
    training.look(4.0, seconds=2)
    assert training.alternate([4.0, 40.0] * 50) == {64}


def test_steps_that_somebody_lets_through_one_by_one_are_not_long() -> None:
    """Each after a hold, of any length: what was waited for is the person."""
    training = Training()
    for _ in range(10):
        assert set(training.look(0, seconds=2, is_held=True) + training.look(60.0, seconds=0.2)) == {64}


def test_who_is_told_a_number_while_steps_are_long_does_not_contradict() -> None:
    """It was known to who told it; only steps that become longer still are news."""
    training = Training()
    training.look(16.4, seconds=1)
    training.choice.order(64)
    assert set(training.look(16.4, seconds=60)) == {64}
    assert training.look(50.0, seconds=1)[-1] <= 4


def test_where_nobody_orders_anything_the_number_follows_the_steps_up_again() -> None:
    """Some time after the choice: to what these steps need, also where they stay longer, and never above the order."""
    for ordered, ms, rises_to in ((64, 1.4, 16), (64, 4.0, 2), (8, 1.4, 8)):
        training = Training()
        training.choice.order(ordered)
        training.look(1.4, seconds=1)
        assert training.look(90.0, seconds=3)[-1] == 1
        assert set(training.look(ms, seconds=BACK_NS / 1e9 - 5)) == {1}
        assert training.look(ms, seconds=5)[-1] == rises_to


def test_steps_that_are_long_for_a_moment_now_and_then_are_left_to_the_observer() -> None:
    """It orders the usual number each time; after some own choices the next ones wait, until there was a quiet time."""
    training = Training()

    def choices(moments: int) -> list[bool]:
        found = []
        for _ in range(moments):
            found.append(training.look(16.4, seconds=0.5)[-1] < 64)
            training.choice.order(64)
            training.look(1.4, seconds=5.5)
        return found

    assert choices(2) == [True, True]
    assert sum(choices(48)) <= 8
    training.look(1.4, seconds=2 * REST_NS[1] / 1e9)
    assert choices(2) == [True, True]


def test_an_order_of_the_number_that_a_rank_has_is_no_news() -> None:
    """What was usual before stays so, and the number can fall further."""
    training = Training()
    training.look(16.4, seconds=0.2)
    training.choice.order(64)
    assert training.look(16.4, seconds=0.2)[-1] < 64


def test_where_the_environment_fixes_it_steps_may_become_as_long_as_they_like() -> None:
    """Nothing is chosen."""
    training = Training(is_fixed=True)
    assert set(training.look(16.4, seconds=10)) == {64}
