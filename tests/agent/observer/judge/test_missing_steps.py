"""How many steps it takes until a verdict is possible: said from the first, and true."""

from __future__ import annotations

import pytest
from support.fakes.groups import Group, slow
from support.fakes.judges import Judge


@pytest.mark.parametrize("usual", [0.1, 1.0, 10.0])
def test_what_is_said_to_be_missing_comes_down_to_nothing_when_a_slow_rank_can_be_told(usual):
    """With steps of 7, 70 and 700 ms: the first word is about right, and no verdict comes before it is 0."""
    phases = {"data": usual, "forward": 20 * usual, "backward": 40 * usual, "optimizer": usual, "other": usual}
    group, judge = Group(2, 1, **phases), Judge(2)
    said, told_at = {}, None
    for rank, record in group.steps(700, slow(1, "backward", 40 * usual)):
        judge.steps(rank, (record,), judge.generation)
        if rank == 1:
            said[record.step] = judge.missing_steps
            if told_at is None and any(each.kind == "slow_rank" for each in judge.verdicts(record.end_at_ns)):
                told_at = record.step
    done = next(step for step, missing in said.items() if not missing)
    assert told_at is not None
    assert done <= told_at <= 1.2 * done + 5
    assert said[3] == pytest.approx(done - 3, rel=0.3, abs=3)
    assert said[done // 2] == pytest.approx(done - done // 2, rel=0.3, abs=5)
    assert set(list(said.values())[done:]) == {0}


def test_a_group_of_one_is_not_judged():
    """Nobody waits for it."""
    judge = Judge(1)
    for rank, record in Group(1, 1).steps(3):
        judge.steps(rank, (record,), 0)
    assert judge.missing_steps == 0
