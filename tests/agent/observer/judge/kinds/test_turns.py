"""Ranks that take turns being late, told on synthetic records, and what looks like it and is none."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec import structs
from support.fakes.groups import Group, Slowness, slow
from support.fakes.judges import Judge

from ddptop.agent import wire
from ddptop.agent.observer.judge.blocks import Evidence
from ddptop.agent.observer.judge.kinds.turns import Turns
from ddptop.agent.wire import Verdict

QUICK: dict[str, Any] = {"forward": 5.0, "backward": 8.0}
"""Steps of about 20 ms."""


def strictly(world: int, step: int) -> int:
    return step % world


def at_random(world: int, step: int) -> int:
    return random.Random(step).randrange(world)


def in_turn(
    world: int, whose: Callable[[int, int], int], phase: str, ms: float, since: int = 1, until: int = 10**9
) -> Slowness:
    """Return a delay of one rank in each step, of another one each time."""

    def more(step: int, rank: int) -> dict[str, float]:
        return {phase: ms} if since <= step < until and rank == whose(world, step) else {}

    return more


def quick(world: int, seed: int, noise: float = 0.08) -> Group:
    group = Group(world, seed, noise, **QUICK)
    group.transfer = 2.0
    return group


def told(judge: Judge, group: Group, count: int, *more: Slowness) -> list[tuple[int, Verdict]]:
    """Return each verdict of the next steps that is new, with the step in which it is told."""
    new: list[tuple[int, Verdict]] = []
    numbers = {each.number for each in judge.verdicts(group.at_ns)}
    for rank, record in group.steps(count, *more):
        judge.steps(rank, (record,), 0)
        for verdict in judge.verdicts(record.end_at_ns):
            if verdict.number not in numbers:
                numbers.add(verdict.number)
                new.append((record.step, verdict))
    return new


def found(group: Group, count: int, *more: Slowness) -> Verdict | None:
    """Return what is found where turns alone are looked for, and nobody else can be blamed."""
    evidence, turns, together = Evidence(group.world), Turns(), dict[int, wire.Step]()
    for rank, record in group.steps(count, *more):
        together[rank] = record
        if len(together) == group.world:
            if evidence.take(together):
                turns.see(evidence.rows[-1])
            together = {}
    return turns.found


@pytest.mark.parametrize("whose", [strictly, at_random])
@pytest.mark.parametrize("world", [2, 4, 16])
@pytest.mark.parametrize("phase", ["data", "backward"])
def test_turns_are_told_with_phase_cost_and_beginning(world, phase, whose):
    """Another rank is late by 25 ms in each step: told within 120 steps, of nobody, and over when it is over."""
    group, judge = quick(world, seed=1), Judge(world)
    assert told(judge, group, 120) == []
    ((at, verdict),) = told(judge, group, 160, in_turn(world, whose, phase, 25, since=121))
    assert (verdict.kind, verdict.rank, verdict.phase) == ("taking_turns", None, phase)
    assert at - 120 <= 120
    assert verdict.cost_ms == pytest.approx(25, abs=3)
    assert verdict.share == pytest.approx(25 / 45, abs=0.08)
    assert verdict.since_step is not None
    assert abs(verdict.since_step - 121) <= 1
    assert verdict.text.startswith("the ranks take turns being late: 2")
    assert f", since step {verdict.since_step}" in verdict.text
    last_at_ns = group.at_ns
    assert told(judge, group, 120) == []
    assert judge.verdicts(group.at_ns) == ()
    (ended,) = judge.ended()
    assert ended.number == verdict.number
    assert ended.until_at_ns is not None
    assert abs(ended.until_at_ns - last_at_ns) < 10**9


@pytest.mark.parametrize("world", [2, 4, 16])
@pytest.mark.parametrize("noise", [0.1, 0.3, 0.6])
def test_equals_do_not_take_turns(world, noise):
    """Somebody is always the last; by chance alone it is no turn, however much the ranks scatter."""
    for seed in range(5):
        group, judge = quick(world, seed, noise), Judge(world)
        assert told(judge, group, 300) == []


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("often", [0.1, 0.3, 0.5])
def test_stops_of_each_rank_on_its_own_are_no_turns(world, often):
    """A scheduler that stops each rank in some of its steps, and now two of them and now none, is silence."""
    for seed in range(5):
        group, judge, stops = quick(world, seed), Judge(world), random.Random(seed)
        drawn = {
            (step, rank): {"forward": stops.expovariate(1 / 12.0)}
            for step in range(1, 301)
            for rank in range(world)
            if stops.random() < often
        }
        assert told(judge, group, 300, partial(_drawn, drawn)) == []


def _drawn(drawn: dict[tuple[int, int], dict[str, float]], step: int, rank: int) -> dict[str, float]:
    return drawn.get((step, rank), {})


def test_ranks_without_a_core_take_no_turns():
    """Two cores, four ranks, and each waits for a core in its turn: the kernel counts it, nobody is told."""
    group, judge = quick(4, seed=3), Judge(4)
    group.starved = [6.0] * 4
    assert told(judge, group, 300, in_turn(4, strictly, "forward", 24)) == []
    group.starved = [0.5] * 4
    ((_, verdict),) = told(judge, group, 300, in_turn(4, strictly, "forward", 24))
    assert verdict.kind == "taking_turns"


def test_slow_ranks_one_after_the_other_take_no_turns():
    """A slow rank that is followed by another one is told as these two."""
    group, judge = quick(4, seed=4), Judge(4)
    spells = (slow(step // 100 % 4, "data", 25, since=step, until=step + 100) for step in range(1, 400, 100))
    kinds = [(verdict.kind, verdict.rank) for _, verdict in told(judge, group, 400, *spells)]
    assert kinds == [("slow_rank", rank) for rank in range(4)]


def test_one_rank_that_is_nearly_always_the_last_is_the_slow_one():
    """Nine steps of ten are one rank's: that is not turns."""
    group, judge = quick(4, seed=5), Judge(4)

    def mostly(step: int, rank: int) -> dict[str, float]:
        return {"data": 25.0} if rank == (step // 10 % 3 if step % 10 == 0 else 3) else {}

    kinds = {(verdict.kind, verdict.rank) for _, verdict in told(judge, group, 300, mostly)}
    assert kinds == {("slow_rank", 3)}

    def often(step: int, rank: int) -> dict[str, float]:
        return {"data": 25.0} if rank == (step // 5 % 3 if step % 5 == 0 else 3) else {}

    assert found(quick(4, seed=5), 200, often) is None
    assert found(quick(4, seed=5), 200, in_turn(4, strictly, "data", 25)) is not None


def test_others_that_are_as_far_apart_make_no_turn():
    """Somebody is far behind in every step, but so are the others behind each other: that is not one rank's turn."""
    group, draw = quick(4, seed=8), random.Random(8)
    places = {step: draw.sample([0.0, 10.0, 20.0, 31.0], 4) for step in range(1, 301)}
    assert found(group, 300, lambda step, rank: {"forward": places[step][rank]}) is None


def test_batches_explain_who_is_late():
    """Where each step another rank has the largest batch, that is said, and not that they take turns."""
    group, judge = quick(4, seed=6), Judge(4)

    def longer(sizes: list[int], step: int, rank: int) -> dict[str, float]:
        return {"backward": (sizes[rank] - 32) * 0.8}

    kinds, evidence, turns = set(), Evidence(4), Turns()
    for step in range(300):
        group.samples = [64 if rank == step % 4 else 32 for rank in range(4)]
        together = dict(group.steps(1, partial(longer, list(group.samples))))
        for rank, record in together.items():
            judge.steps(rank, (record,), 0)
        kinds |= {verdict.kind for verdict in judge.verdicts(group.at_ns)}
        if evidence.take(together):
            turns.see(evidence.rows[-1])
    assert kinds == {"unequal_work"}
    assert turns.found is None


def test_where_collectives_are_not_seen_nobody_takes_turns():
    """Without the wait a rank's own time is not known."""
    group, judge = quick(4, seed=7), Judge(4)
    group.observed = False
    assert told(judge, group, 200, in_turn(4, strictly, "forward", 25)) == []


def test_the_share_of_turns_is_that_of_the_pace_of_the_group():
    """Where nobody waits, a step of the mean rank is shorter than the delay of the one whose turn it is."""
    group, judge = Group(4, seed=6, data=0.5, forward=1.0, backward=2.0, optimizer=0.2), Judge(4)
    for rank, record in group.steps(800, in_turn(4, strictly, "forward", 25)):
        judge.steps(rank, (structs.replace(record, wall_ns=record.wall_ns - (record.wait_ns or 0), wait_ns=0),), 0)
    (verdict,) = judge.verdicts(group.at_ns)
    # 25 of the 29.7 ms of the one that is late; a step of all takes 11 in the mean.
    assert verdict.kind == "taking_turns"
    assert verdict.share == pytest.approx(25 / 29.7, abs=0.03)


def test_where_no_backward_pass_is_seen_turns_are_not_said_to_be_between_the_phases():
    """A loop of `autograd.grad`, say: forward and backward pass are in what is left."""
    group, judge = Group(4, seed=7, forward=0.0, backward=0.0, other=8.0), Judge(4)
    told(judge, group, 300, in_turn(4, strictly, "other", 25))
    (verdict,) = judge.verdicts(group.at_ns)
    assert (verdict.kind, verdict.phase) == ("taking_turns", "other")
    assert "(no backward pass is seen)" in verdict.text
