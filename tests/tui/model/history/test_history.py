"""The history of a run for the views that look back: whole steps, and what a restart leaves."""

from __future__ import annotations

import msgspec
import pytest
from support.values.histories import RecordedHistory
from support.values.steps import BASE, SECOND, step

from ddptop.agent import wire
from ddptop.agent.client.history.history import LEAST_STEPS, RECORDS, NewestSteps


def test_the_newest_steps_are_kept_whole() -> None:
    """Steps that every rank has completed are offered; old ones and late records of them are let go."""
    kept = NewestSteps(2)
    for number in range(1, 1000):
        kept.take(0, step(number, number))
        if number < 990:
            kept.take(1, step(number, number))
    kept.take(1, step(1, 1.0))
    numbers = kept.numbers({0, 1})
    assert numbers[-1] == 989
    assert numbers == list(range(numbers[0], 990))
    assert len(kept._steps) <= 240
    assert [each.step for each in kept.by_rank(0)][-1] == 999
    assert not kept.of(1)
    assert NewestSteps(10_000)._limit == LEAST_STEPS
    assert NewestSteps(1024)._limit * 1024 <= RECORDS


def test_a_rank_that_counts_anew_has_no_steps_of_the_count_before() -> None:
    """Nor is it waited for until it has as many."""
    kept = NewestSteps(2)
    for seq in range(1, 1011):
        for rank in (0, 1):
            kept.take(rank, msgspec.structs.replace(step(seq, seq), step=seq if seq <= 1000 else seq - 1000))
    # The first of the new count comes while the other rank still has a whole store of the old one.
    assert kept.numbers({0, 1}) == list(range(2, 11))
    assert [each.seq for each in kept.by_rank(0)] == list(range(1002, 1011))


def test_a_restart_forgets_the_steps_and_keeps_the_numbers() -> None:
    """Records of steps are let go once a later generation has some, or a process took another's place; what was
    answered of the run stays.
    """
    history = RecordedHistory(1)
    history.take(0, step(7, 1.5))
    history.take_memory(0, BASE * SECOND, 2**30)
    history.hear(wire.Steps(0, (step(1, 1.5),), generation=1))
    assert history.steps.numbers({0}) == [1]
    history.hear(wire.Steps(0, (step(8, 1.5),)))
    assert history.steps.numbers({0}) == [1], "late records of the generation before tell nothing of this one"
    for began in (5, 5, 6):
        history.hear(wire.Hello(wire.PROTOCOL, "toy", "id", 0, 0, 1, 7, began, "h", "p", "0", "3", 1))
        assert history.steps.numbers({0}) == ([1] if began == 5 else [])
    assert history.by_time.window("step", 0, BASE + 1, 1)[0, 0] == pytest.approx(80.0)
    assert history.by_time.window("memory", 0, BASE, 1)[0, 0] == 2**30
