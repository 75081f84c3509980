"""The steps of a run by its heartbeats."""

from __future__ import annotations

import pytest

from ddptop.agent.observer.judge.hang.progress import ONE, Progress
from ddptop.agent.observer.judge.standstill import LONGEST_S
from ddptop.agent.wire import Beat, Summary

NOW = 1_000 * ONE


def beat(step: int, step_at_ns: int | None, state: str = "running") -> Beat:
    """Return a heartbeat of rank 0."""
    return Beat(0, NOW, state, "forward", step, step_at_ns, step)


@pytest.mark.parametrize(("told", "believed"), [(NOW - ONE, NOW - ONE), (NOW + ONE, NOW), (5, NOW), (2**63 - 1, NOW)])
def test_the_time_of_a_step_is_believed_as_far_as_it_can_be_true(told, believed):
    """Heartbeats come once a second: a step that one tells of was made within the last two."""
    progress = Progress(everyone=True)
    progress.beat(beat(1, told), NOW)
    assert progress.since_ns == believed


def test_a_start_is_nothing_to_learn_from():
    """The first step takes a minute because of imports and compilation."""
    progress = Progress(everyone=True)
    progress.beat(beat(0, None, "starting"), NOW)
    assert progress.beat(beat(1, NOW + 60 * ONE), NOW + 60 * ONE) == 0.0
    assert progress.beat(beat(2, NOW + 63 * ONE), NOW + 63 * ONE) == 3.0


def test_what_is_learned_is_bounded():
    """A run that has stood for an hour once is not left alone for an hour."""
    progress = Progress(everyone=True)
    progress.learn(3_600)
    assert progress.longest_s == LONGEST_S


def test_the_usual_step_is_that_of_one_rank_and_its_median():
    """A step with an evaluation in it does not count; of several ranks the lowest speaks."""
    progress = Progress(everyone=True)
    for rank, ms in ((3, 900), (0, 200), (0, 60_000), (0, 220), (3, 900)):
        progress.summary(Summary(rank, 1, NOW, 1, 1, 1, ms * 10**6, 0, 0, 0, 0, 0, 0))
    assert progress.usual_s == pytest.approx(0.22)
