"""Collectives of several ranks are split into waiting for the last one and the transfer."""

from __future__ import annotations

import pytest

from ddptop.agent.observer.model.collectives import WINDOW, Alignment, Split, split
from ddptop.agent.wire import Collective, Step


def step(number: int, start: int, *calls: Collective) -> Step:
    """A step of 1,000 ns that began at `start`."""
    return Step(number, number, start + 1000, 1000, 0, 0, 0, 0, 0, 1000, collectives=calls)


def reduce(entered: int, duration: int | None, **more) -> Collective:
    return Collective("all_reduce", entered, duration, 8, 1, group="0", **more)


def waited(part: Split | None) -> int:
    """From the call until the last rank had entered."""
    assert part is not None
    return part.begun - part.entered


def transfer(part: Split | None) -> int:
    """From then until completion on this rank."""
    assert part is not None
    return part.done - part.begun


def test_waiting_ends_when_the_last_rank_enters():
    """Ranks whose steps began at different times, on the clock that they share."""
    splits = split({0: step(1, 5000, reduce(100, 400)), 1: step(1, 5050, reduce(300, 155))})
    assert [(waited(s), transfer(s)) for s in splits[0]] == [(250, 150)]
    assert [(waited(s), transfer(s)) for s in splits[1]] == [(0, 155)]


def test_time_in_the_queue_of_a_worker_is_no_transfer_and_the_split_is_an_estimate():
    """What a rank's backend took up late began late for all."""
    splits = split({0: step(1, 0, reduce(100, 400)), 1: step(1, 0, reduce(100, 400, queued_ns=300, estimated=True))})
    assert [(waited(s), transfer(s), s and s.estimated) for s in splits[0]] == [(300, 100, True)]


def test_the_kth_of_a_group_is_matched_whatever_else_a_rank_calls():
    """Other groups and sends in between do not shift the order."""
    sub = Collective("all_reduce", 20, 50, 8, 1, group="1")
    send = Collective("send", 30, 50, 8, 1, group="0")
    splits = split(
        {0: step(1, 0, reduce(0, 10), sub, send, reduce(100, 90)), 1: step(1, 0, reduce(5, 5), reduce(150, 40))}
    )
    assert [s and waited(s) for s in splits[0]] == [5, None, None, 50]
    assert [s and waited(s) for s in splits[1]] == [0, 0]


def test_what_cannot_be_known_is_none():
    """Another order on another rank, a duration not seen, a device with a time of its own: no number."""
    differing = split({0: step(1, 0, reduce(0, 9)), 1: step(1, 0, Collective("broadcast", 0, 9, 8, 1, group="0"))})
    assert differing == {0: [None], 1: [None]}
    assert split({0: step(1, 0, reduce(0, 9)), 1: step(1, 0, reduce(1, None))})[1] == [None]
    on_device = {0: step(1, 0, reduce(0, 9, on_device=True)), 1: step(1, 0, reduce(1, 9, on_device=True))}
    assert split(on_device) == {0: [None], 1: [None]}
    assert split({0: step(1, 0, reduce(0, 9))}) == {0: [None]}


def test_the_source_of_a_broadcast_waits_for_nobody():
    """It is done before the last rank enters."""
    splits = split({0: step(1, 0, reduce(0, 20)), 1: step(1, 0, reduce(500, 10))})
    assert (waited(splits[0][0]), transfer(splits[0][0])) == (0, 20)


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
