"""The history of a run for the views that look back: whole steps, and what a restart leaves."""

from __future__ import annotations

import pytest
from support.values.histories import RecordedHistory
from support.values.steps import BASE, SECOND, step

from ddptop.tui.model.history.history import LEAST_STEPS, RECORDS, NewestSteps


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


def test_a_restart_forgets_the_steps_and_keeps_the_numbers() -> None:
    """Records of steps that are numbered anew are let go; what was answered of the run stays."""
    history = RecordedHistory(1)
    history.take(0, step(7, 1.5))
    history.take_memory(0, BASE * SECOND, 2**30)
    history.restart()
    assert history.steps.numbers({0}) == []
    assert history.by_time.window("step", 0, BASE + 1, 1)[0, 0] == pytest.approx(80.0)
    assert history.by_time.window("memory", 0, BASE, 1)[0, 0] == 2**30
