"""The judge of a group of which one step in eight is recorded: it says what it says of whole records."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from support.fakes.groups import Group, Slowness, healthy, slow
from support.fakes.judges import Judge

from ddptop.agent.rank.records.sampling import next_sampled
from ddptop.agent.wire import Step, Verdict

EVERY = 8
SHORT = {"data": 0.02, "forward": 0.2, "backward": 0.4, "optimizer": 0.03, "other": 0.01}
"""Milliseconds of a step that is too short for a record of each."""


def thinned(group: Group, count: int, more: Slowness, every: int) -> Iterator[tuple[int, Step]]:
    """Yield the records of one step in k, each with the steps before it as they are told."""
    counted, counted_ns = [0] * group.world, [0] * group.world
    for rank, record in group.steps(count, more):
        if next_sampled(record.step, every) != record.step:
            counted[rank] += 1
            counted_ns[rank] += record.wall_ns
            continue
        yield rank, msgspec.structs.replace(record, counted=counted[rank], counted_ns=counted_ns[rank])
        counted[rank] = counted_ns[rank] = 0


def told(more: Slowness, every: int, steps: int = 12_000) -> tuple[tuple[Verdict, ...], int | None]:
    """Return the last verdicts, and in which step of the first thousands there was one first."""
    group, judge = Group(4, seed=7, **SHORT), Judge(4)
    group.transfer = 0.3
    first, looked = None, 0
    for rank, record in thinned(group, steps, more, every):
        judge.steps(rank, (record,), 0)
        if rank == 3 and record.step // 200 > looked and first is None and judge.verdicts(record.end_at_ns):
            first = record.step
        if rank == 3:
            looked = record.step // 200
    return judge.verdicts(group.at_ns), first


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
def test_a_slow_rank_is_named_as_soon_and_as_exactly(phase: str) -> None:
    """The same rank and phase, the same cost within a tenth, at most 600 steps of 1 ms later."""
    more = slow(2, phase, 0.6, since=2001)
    (whole, first), (eighth, later) = told(more, 1, 6_000), told(more, EVERY, 6_000)
    assert [(each.kind, each.rank, each.phase) for each in eighth] == [("slow_rank", 2, phase)]
    assert [(each.kind, each.rank, each.phase) for each in whole] == [("slow_rank", 2, phase)]
    assert eighth[0].cost_ms == pytest.approx(whole[0].cost_ms, rel=0.1)
    assert first is not None
    assert later is not None
    assert later - first <= 600


def test_of_a_healthy_group_nothing_is_said() -> None:
    """However few of its steps are recorded."""
    assert told(healthy, EVERY) == told(healthy, 64) == ((), None)


def test_a_delay_once_in_ten_steps_gets_no_rhythm_that_is_not_known() -> None:
    """What meets records only once in forty steps is not said to come every forty."""
    verdicts, _ = told(slow(2, "data", 4.0, every=10, since=10), EVERY)
    assert [(each.kind, each.rank, each.every) for each in verdicts] == [("slow_rank", 2, None)]


@pytest.mark.parametrize("every", [2, EVERY, 32])
def test_of_ranks_that_take_turns_none_is_told_as_the_slow_one(every: int) -> None:
    """Where two of them are late in every second step each, both are met, and as often."""

    def in_turn(step: int, rank: int) -> dict[str, float]:
        return {"forward": 0.6} if rank == step % 2 else {}

    verdicts, _ = told(in_turn, every)
    assert [each for each in verdicts if each.kind != "taking_turns"] == []
