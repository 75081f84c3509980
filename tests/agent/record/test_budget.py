"""How many steps are recorded is decided from what a step takes and a record costs, for all ranks alike."""

from __future__ import annotations

from typing import Any

import msgspec

from ddptop.agent import wire
from ddptop.agent.record.budget import Budget
from ddptop.agent.run.switches.recording import needed

US = 1_000
MS = 1_000_000


class Group:
    """Ranks that make steps, say what these cost them, and obey."""

    def __init__(self, world: int, step_ms: float, **more: Any) -> None:
        self.now = 1000.0
        self.step_ms = step_ms
        self.more: dict[str, Any] = {"cost_ns": 60 * US, "counted_cost_ns": 5 * US, "record_ns": 50 * US} | more
        self.every = dict.fromkeys(range(world), 1)
        self.steps = dict.fromkeys(range(world), 0.0)
        self.stepped_at = self.now
        self.orders: list[tuple[int, int]] = []
        self.budget = Budget(world, lambda: self.now)
        self.deaf: set[int] = set()

    def obey(self, rank: int, every: int) -> None:
        self.orders.append((rank, every))
        if rank not in self.deaf:
            self.every[rank] = every

    def beat(self, rank: int, **more: Any) -> wire.Beat:
        return wire.Beat(
            rank=rank, at_ns=int(self.now * 1e9), state="running", activity="", step=int(self.steps[rank]),
            step_at_ns=int(self.stepped_at * 1e9), seq=1, recorded_every=self.every[rank], **(self.more | more),
        )  # fmt: skip

    def run(self, seconds: int) -> set[int]:
        """Return the numbers that a rank had meanwhile."""
        seen = set()
        for _ in range(seconds):
            self.now += 1
            self.stepped_at = self.now
            for rank in self.every:
                self.steps[rank] += 1000 / self.step_ms
                self.budget.note(self.beat(rank))
            for order in self.budget.turn():
                self.obey(*order)
            seen |= set(self.every.values())
        return seen


def test_long_steps_are_all_recorded() -> None:
    """Nothing is sent to ranks that do already what they should."""
    group = Group(4, 20.0)
    assert group.run(60) == {1}
    assert group.orders == []


def test_short_steps_are_not_all_recorded_and_all_ranks_get_the_same_number() -> None:
    """Within ten seconds, by one order to each rank."""
    group = Group(4, 2.0)
    group.run(10)
    assert set(group.every.values()) == {needed(2 * MS, 60 * US, 5 * US, 50 * US)} == {4}
    assert sorted(group.orders) == [(rank, 4) for rank in range(4)]


def test_a_rank_that_has_not_heard_it_is_told_again() -> None:
    """Until its signs of life say so, and not at every turn."""
    group = Group(2, 2.0)
    group.deaf = {1}
    group.run(30)
    assert group.every == {0: 4, 1: 1}
    assert 5 <= group.orders.count((1, 4)) <= 10
    group.deaf = set()
    group.run(5)
    assert group.every == {0: 4, 1: 4}


def test_a_step_time_around_the_border_does_not_make_it_flap() -> None:
    """It goes up at most once, and comes down only where there is room to spare for some time."""
    group = Group(2, 2.0)
    for minute in range(10):
        # The border between every step and every second one is at 6 ms.
        group.step_ms = 5.8 if minute % 2 else 6.2
        group.run(60)
    assert sorted(group.orders) == [(0, 2), (1, 2)]
    group.step_ms = 20.0
    group.run(60)
    assert set(group.every.values()) == {1}


def test_steps_that_become_far_longer_are_recorded_at_once() -> None:
    """Whoever wants to know why must not wait until the records of rare steps have told."""
    group = Group(2, 1.0)
    group.run(10)
    assert set(group.every.values()) == {16}
    group.step_ms = 10.0
    group.run(3)
    assert set(group.every.values()) == {1}
    group.step_ms = 1.0
    group.run(10)
    assert set(group.every.values()) == {16}


def test_steps_whose_records_come_too_rarely_by_now_are_recorded_more_often_at_once() -> None:
    """Although they are but twice as long: of one record in 0.2 s nobody can tell anything."""
    group = Group(2, 12.0, cost_ns=400 * US, counted_cost_ns=110 * US, record_ns=200 * US)
    group.run(10)
    assert set(group.every.values()) == {8}
    group.step_ms = 22.0
    group.run(3)
    assert set(group.every.values()) == {4}


def test_around_the_distance_that_records_may_have_it_does_not_flap() -> None:
    """It goes up once; what is only a little too far apart stays."""
    group = Group(2, 19.4, cost_ns=310 * US, counted_cost_ns=190 * US, record_ns=100 * US)
    for minute in range(10):
        # One record in 80 ms is one step in 4 of 20 ms.
        group.step_ms = 20.6 if minute % 2 else 19.4
        group.run(60)
    assert sorted(group.orders) == [(0, 4), (1, 4)]


def test_an_evaluation_between_two_steps_is_no_long_step() -> None:
    """A minute without a step, every other minute, changes nothing."""
    group = Group(2, 1.0)
    group.run(10)
    for _ in range(10):
        for _ in range(60):
            group.now += 1
            for rank in group.every:
                group.budget.note(group.beat(rank))
            for order in group.budget.turn():
                group.obey(*order)
        assert group.run(60) == {16}


def test_what_most_ranks_chose_by_themselves_becomes_the_number_of_all() -> None:
    """They are told so, as is the rank that has not chosen; who has chosen to record still more is not sent back."""
    group = Group(4, 1.0)
    group.run(10)
    orders = len(group.orders)
    group.every.update({0: 2, 1: 4, 2: 4})
    group.step_ms = 5.0
    group.run(1)
    assert group.budget.every == 4
    assert sorted(group.orders[orders:]) == [(1, 4), (2, 4), (3, 4)]
    group.step_ms = 1.0
    group.run(10)
    assert set(group.every.values()) == {16}


def test_one_rank_that_chose_another_number_by_itself_is_told_the_common_one() -> None:
    """Not before the others have had time to choose the same."""
    group = Group(4, 2.0)
    group.run(10)
    group.every[1] = 1
    group.run(2)
    assert group.every[1] == 1
    group.run(3)
    assert group.every[1] == group.budget.every == 4
    assert len(group.orders) == 5


def test_ranks_that_have_not_obeyed_yet_chose_nothing() -> None:
    """That they have fewer than was ordered is no wish of theirs, also where they once had obeyed another order."""
    group = Group(2, 1.0)
    group.run(10)
    group.step_ms = 10.0
    group.run(3)
    assert set(group.every.values()) == {1}
    group.deaf, group.step_ms = {0, 1}, 1.0
    group.run(10)
    assert group.budget.every == 16
    assert group.orders[-1] == (1, 16)


def test_a_straggler_of_a_paused_group_does_not_decide_for_all() -> None:
    """Although it is the only one that runs, and records more."""
    group = Group(4, 2.0)
    group.run(10)
    for rank in range(1, 4):
        group.budget.note(msgspec.structs.replace(group.beat(rank), state="paused"))
    group.every[0] = 1
    group.budget.note(group.beat(0))
    for order in group.budget.turn():
        group.obey(*order)
    assert group.budget.every == 4


def test_a_process_that_begins_anew_chose_nothing() -> None:
    """Its steps are counted anew, in the same generation where nobody counts these."""
    group = Group(2, 2.0)
    group.run(10)
    group.every, group.steps = {0: 1, 1: 1}, {0: 0.0, 1: 0.0}
    group.run(1)
    assert group.budget.every == 4
    assert group.every == {0: 4, 1: 4}


def test_a_number_that_no_rank_can_have_is_not_taken_over() -> None:
    """Whoever tells it: the ranks are told the common one."""
    group = Group(2, 2.0)
    group.run(10)
    group.every = {0: 3, 1: 3}
    group.run(1)
    assert group.budget.every == 4
    group.run(4)
    assert group.every == {0: 4, 1: 4}


def test_what_is_dear_for_a_moment_changes_nothing() -> None:
    """Two seconds in which the machine is busy with something else."""
    group = Group(2, 20.0)
    group.run(10)
    group.more["cost_ns"] = 5000 * US
    group.run(2)
    group.more["cost_ns"] = 60 * US
    group.run(10)
    assert group.orders == []


def test_a_pause_is_no_long_step() -> None:
    """What was too short stays so: the time of a hold is no part of a step."""
    group = Group(2, 2.0)
    group.run(20)
    for _ in range(20):
        for _ in range(30):
            group.now += 1
            for rank in group.every:
                group.budget.note(group.beat(rank, held_at_ns=1))
            for order in group.budget.turn():
                group.obey(*order)
        group.more["released_at_ns"] = int(group.now * 1e9)
        assert group.run(2) == {4}


def test_where_the_environment_fixes_it_nothing_is_ordered() -> None:
    """However dear the records are."""
    group = Group(2, 0.5, is_fixed=True)
    group.run(30)
    assert group.orders == []


def test_a_new_observer_goes_on_with_what_the_ranks_have() -> None:
    """A rank that has another number than the others gets theirs, and these are told that it is the ordered one."""
    group = Group(3, 2.0)
    group.every.update({0: 4, 1: 4})
    group.run(10)
    assert sorted(group.orders) == [(0, 4), (1, 4), (2, 4)]


def test_one_rank_that_makes_up_its_numbers_does_not_decide() -> None:
    """Of many: neither the cost that it claims nor its times."""
    group = Group(20, 20.0)
    for _ in range(30):
        group.run(1)
        group.budget.note(group.beat(19, cost_ns=1 << 53, counted_cost_ns=1 << 53, record_ns=1 << 53, generation=0))
        group.budget.note(msgspec.structs.replace(group.beat(19, cost_ns=1 << 53), rank=99))
    assert group.orders == []


def test_processes_of_a_new_generation_are_told_anew() -> None:
    """They record every step at first; what comes late of those before them is left out."""
    group = Group(2, 2.0)
    group.run(10)
    group.every, group.orders = dict.fromkeys(range(2), 1), []
    group.more["generation"] = 1
    group.run(10)
    assert sorted(group.orders) == [(0, 4), (1, 4)]
