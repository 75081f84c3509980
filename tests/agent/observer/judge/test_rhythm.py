"""A delay that comes every so many steps says how often."""

from __future__ import annotations

import random

import pytest
from support.fakes.groups import Group, slow
from support.fakes.judges import Judge

from ddptop.agent.wire import Verdict


def last_word(group: Group, judge: Judge) -> Verdict:
    (verdict,) = judge.verdicts(group.at_ns + 10**10)
    return verdict


@pytest.mark.parametrize(("every", "ms", "steps"), [(2, 60, 200), (5, 150, 300), (10, 250, 500), (25, 700, 900)])
def test_the_distance_and_the_length_are_told(every, ms, steps):
    """Every k steps, so many milliseconds each time, since the step in which it came first."""
    group, judge = Group(4, seed=2), Judge(4)
    for rank, record in group.steps(steps, slow(1, "optimizer", ms, since=101, every=every)):
        judge.steps(rank, (record,), 0)
        judge.verdicts(record.end_at_ns)
    verdict = last_word(group, judge)
    assert (verdict.kind, verdict.rank, verdict.phase, verdict.every) == ("slow_rank", 1, "optimizer", every)
    assert verdict.since_step == 101
    assert f"optimizer step, {ms} ms every {every} steps, since step 101" in verdict.text
    assert verdict.cost_ms == pytest.approx(ms / every, rel=0.3)


def test_a_longer_stop_for_another_reason_does_not_hide_it():
    """A checkpoint of three seconds in between."""
    group, judge = Group(4, seed=3), Judge(4)
    for rank, record in group.steps(500, slow(1, "data", 200, every=10), slow(1, "data", 3000, since=256, until=257)):
        judge.steps(rank, (record,), 0)
    assert last_word(group, judge).every == 10


def test_what_comes_in_every_step_or_at_random_has_no_rhythm():
    """Named as ever, without a number that would be made up."""
    draw = random.Random(4)
    hit = {step for step in range(1, 600) if draw.random() < 0.3}
    for more in (slow(1, "data", 30), lambda step, rank: {"data": 150.0} if rank == 1 and step in hit else {}):
        group, judge = Group(4, seed=5), Judge(4)
        for rank, record in group.steps(500, more):
            judge.steps(rank, (record,), 0)
        verdict = last_word(group, judge)
        assert (verdict.kind, verdict.rank, verdict.every) == ("slow_rank", 1, None)
        assert "every" not in verdict.text
