"""Collectives of several ranks are split into waiting for the last one and the transfer."""

from __future__ import annotations

from ddptop.agent.record.history.aligned import align, split
from ddptop.agent.wire import Collective, Split, Step


def step(start: int, *calls: Collective) -> Step:
    """A step of 1,000 ns that began at `start`."""
    return Step(1, 1, start + 1000, 1000, 0, 0, 0, 0, 0, 1000, collectives=calls)


def reduce(entered: int, duration: int | None, **more) -> Collective:
    return Collective("all_reduce", entered, duration, 8, 1, group="0", **more)


def parts(steps: dict[int, Step], rank: int) -> list[tuple[int, int] | None]:
    """Return of each collective how long a rank waited for the last one, and the transfer after that."""
    found: list[tuple[int, int] | None] = []
    for call, each in zip(steps[rank].collectives, split(steps)[rank], strict=True):
        assert each is None or call.duration_ns is not None
        done = call.entered_ns + (call.duration_ns or 0)
        found.append(None if each is None else (each.begun_ns - call.entered_ns, done - each.begun_ns))
    return found


def test_waiting_ends_when_the_last_rank_enters():
    """Ranks whose steps began at different times, on the clock that they share."""
    steps = {0: step(5000, reduce(100, 400)), 1: step(5050, reduce(300, 155))}
    assert parts(steps, 0) == [(250, 150)]
    assert parts(steps, 1) == [(0, 155)]


def test_time_in_the_queue_of_a_worker_is_no_transfer_and_the_split_is_an_estimate():
    """What a rank's backend took up late began late for all."""
    steps = {0: step(0, reduce(100, 400)), 1: step(0, reduce(100, 400, queued_ns=300, estimated=True))}
    assert parts(steps, 0) == [(300, 100)]
    assert split(steps)[0] == [Split(400, 1, True)]


def test_the_kth_of_a_group_is_matched_whatever_else_a_rank_calls():
    """Other groups and sends in between do not shift the order."""
    sub = Collective("all_reduce", 20, 50, 8, 1, group="1")
    send = Collective("send", 30, 50, 8, 1, group="0")
    steps = {0: step(0, reduce(0, 10), sub, send, reduce(100, 90)), 1: step(0, reduce(5, 5), reduce(150, 40))}
    assert [each and each[0] for each in parts(steps, 0)] == [5, None, None, 50]
    assert [each and each[0] for each in parts(steps, 1)] == [0, 0]


def test_what_cannot_be_known_is_none():
    """Another order on another rank, a duration not seen, a device with a time of its own: no number."""
    differing = split({0: step(0, reduce(0, 9)), 1: step(0, Collective("broadcast", 0, 9, 8, 1, group="0"))})
    assert differing == {0: [None], 1: [None]}
    assert split({0: step(0, reduce(0, 9)), 1: step(0, reduce(1, None))})[1] == [None]
    on_device = {0: step(0, reduce(0, 9, on_device=True)), 1: step(0, reduce(1, 9, on_device=True))}
    assert split(on_device) == {0: [None], 1: [None]}
    assert split({0: step(0, reduce(0, 9))}) == {0: [None]}


def test_the_source_of_a_broadcast_waits_for_nobody():
    """It is done before the last rank enters."""
    assert parts({0: step(0, reduce(0, 20)), 1: step(500, reduce(0, 10))}, 0) == [(0, 20)]


def test_while_a_rank_is_missing_all_is_an_estimate():
    """It may have come still later."""
    steps = {rank: step(0, reduce(rank, 9)) for rank in (0, 2)}
    assert [each.splits for each in align(steps, 2)] == [(Split(2, 2),)] * 2
    assert [each.splits for each in align(steps, 3)] == [(Split(2, 2, True),)] * 2
