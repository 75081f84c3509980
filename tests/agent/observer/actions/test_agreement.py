"""Ranks that choose by themselves how many steps they record, and the observer that takes it over, come to one number.

Both are the real ones, on one clock: each rank looks every 0.1 s and gives a sign of life every second and where its
number has changed, and the observer takes its turn every second, all at other times.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from support.fakes.clocks import Clock

from ddptop.agent import wire
from ddptop.agent.rank.records.own_rate import OwnRate
from ddptop.agent.record.budget import Budget

US, MS = 1_000, 1_000_000
COSTS = {"recorded_ns": 110 * US, "counted_ns": 14 * US}
RECORD_NS = 50 * US
TICK_MS = 10
LOOKS_AT = 30, 70, 50, 10
TURN_AT = 500


class Run:
    """Ranks that train alike, and their observer."""

    def __init__(self, world: int) -> None:
        self.now_ms = 0
        self.clock = Clock(0)
        self.made = 0.0
        cost = SimpleNamespace(**COSTS)
        self.stamps: list[Any] = [SimpleNamespace(every=32, steps=0, cost=cost, clock=self.clock) for _ in range(world)]
        self.choices = [OwnRate(each) for each in self.stamps]
        self.told: list[int | None] = [None] * world
        self.orders: list[tuple[int, int, int]] = []
        self.budget = Budget(world, lambda: self.now_ms / 1e3)
        for choice in self.choices:
            choice.order(32)

    def obey(self, rank: int, every: int) -> None:
        self.orders.append((self.now_ms, rank, every))
        self.choices[rank].order(every)

    def train(self, ms: float, seconds: float) -> list[tuple[int, ...]]:
        """Make steps of this length; return the numbers of all ranks after each tick."""
        found = []
        for _ in range(round(seconds * 1e3 / TICK_MS)):
            self.now_ms += TICK_MS
            self.clock.now = self.now_ms * MS
            self.made += TICK_MS / ms
            for rank, stamps in enumerate(self.stamps):
                stamps.steps = int(self.made)
                if self.now_ms % 100 == LOOKS_AT[rank]:
                    self.choices[rank].look(RECORD_NS, is_held=False)
                    if self.told[rank] != stamps.every or self.now_ms % 1000 == 100 * rank + LOOKS_AT[rank]:
                        self.tell(rank)
            if self.now_ms % 1000 == TURN_AT:
                for order in self.budget.turn():
                    self.obey(*order)
            found.append(tuple(each.every for each in self.stamps))
        return found

    def tell(self, rank: int) -> None:
        stamps = self.stamps[rank]
        self.told[rank] = stamps.every
        self.budget.note(
            wire.Beat(
                rank=rank, at_ns=self.now_ms * MS, state="running", activity="", step=stamps.steps,
                step_at_ns=self.now_ms * MS, seq=1, recorded_every=stamps.every, cost_ns=COSTS["recorded_ns"],
                counted_cost_ns=COSTS["counted_ns"], record_ns=RECORD_NS,
            )
        )  # fmt: skip


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("ms", [6.4, 16.4, 51.4])
def test_in_a_delay_all_ranks_record_more_soon_and_nobody_is_sent_back(world: int, ms: float) -> None:
    """Whenever it begins, their records are near enough after 0.7 s; then all come back by one order each."""
    for begin in range(0, 1000, 70):
        run = Run(world)
        run.train(1.4, 12 + begin / 1e3)
        usual = run.stamps[0].every
        during = run.train(ms, 6)
        assert all(every == 1 or every * ms <= 80 for every in during[70]), begin
        for before, after in itertools.pairwise(during):
            assert all(new <= old for old, new in zip(before, after, strict=True)), begin
        assert len(set(during[-1])) == 1, begin
        back = run.train(1.4, 8)
        assert set(back[-1]) == {usual}, begin
        raised = [order for order in run.orders if order[0] > run.now_ms - 8000]
        assert len(raised) == world, begin


def test_ranks_know_that_their_choice_was_taken_over() -> None:
    """They do not return to what was ordered before by themselves: only the observer orders another number."""
    run = Run(2)
    run.train(1.4, 12)
    run.train(6.4, 3)
    assert {choice._ordered for choice in run.choices} == {run.budget.every} == {run.stamps[0].every}


def test_a_moment_of_long_steps_now_and_then_does_not_keep_the_number_low() -> None:
    """0.4 s of every 6 s: most of the time the number is the usual one."""
    run = Run(2)
    run.train(1.4, 12)
    usual = run.stamps[0].every
    found = [each for _ in range(20) for each in run.train(1.4, 5.6) + run.train(10.0, 0.4)]
    assert sum(each == (usual, usual) for each in found) > 0.75 * len(found)
