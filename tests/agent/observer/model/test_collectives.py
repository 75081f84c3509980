"""Means of waiting and transfer over steps."""

from __future__ import annotations

import pytest

from ddptop.agent.observer.model.collectives import WINDOW, Alignment
from ddptop.agent.wire import Collective, Step


def step(number: int, start: int, *calls: Collective) -> Step:
    """A step of 1,000 ns that began at `start`."""
    return Step(number, number, start + 1000, 1000, 0, 0, 0, 0, 0, 1000, collectives=calls)


def reduce(entered: int, duration: int | None, **more) -> Collective:
    return Collective("all_reduce", entered, duration, 8, 1, group="0", **more)


def test_means_per_step_count_overlapping_buckets_once():
    """Two buckets: while one moves, the other's waiting is not counted."""
    alignment = Alignment(2)
    assert alignment.means_ms(0) is None
    for number in (1, 2):
        start = number * 10_000
        late = step(number, start, reduce(200, 100), reduce(400, 200))
        alignment.take({0: step(number, start, reduce(0, 300), reduce(100, 500)), 1: late})
    # Rank 0: bucket 1 waits 0-200 and moves 200-300, bucket 2 waits 100-400 and moves 400-600.
    assert alignment.means_ms(0) == (300 / 1e6, 300 / 1e6)
    assert alignment.means_ms(1) == (0.0, 300 / 1e6)


def test_steps_that_nobody_asked_about_meanwhile_count() -> None:
    """The means are the same, whether somebody asks after each step or once after many; few steps wait to be asked."""
    often, once = Alignment(2), Alignment(2)
    for number in range(1, 4 * WINDOW):
        steps = {0: step(number, 0, reduce(0, 900)), 1: step(number, 0, reduce(number, 900))}
        for alignment in (often, once):
            alignment.take(steps)
        often.means_ms(0)
    assert len(once._taken) == WINDOW
    assert once.means_ms(0) == often.means_ms(0) is not None
    assert once.means_ms(1) == often.means_ms(1)


def test_a_step_that_was_not_timed_on_every_rank_says_nothing():
    """Who is not known to have waited may have been the one that was waited for."""
    alignment = Alignment(2)
    alignment.take({0: step(1, 0, reduce(0, 300)), 1: step(1, 0)})
    assert alignment.means_ms(0) is None


def test_of_many_ranks_some_steps_are_looked_at():
    """The mean of a large group is over few of its steps, as far back as they go in a small one, or farther."""
    world, looked_at = 64, []
    alignment = Alignment(world)
    for number in range(1, 401):
        late = number * 10  # how long the others wait for the last rank
        steps = {rank: step(number, 0, reduce(late if rank == world - 1 else 0, 10_000)) for rank in range(world)}
        before = alignment.means_ms(0)
        alignment.take(steps)
        looked_at += [number] if alignment.means_ms(0) != before else []
    assert looked_at == list(range(8, 401, 8))
    last = looked_at[-16:]
    waits, _ = alignment.means_ms(0) or (0, 0)
    assert waits == pytest.approx(10 * sum(last) / len(last) / 1e6)
