"""A group of many ranks: summaries of all, records of those that are looked at, and the same frame from both."""

from __future__ import annotations

import pytest
from support.screens.frames import frame_at

from ddptop.agent import wire
from ddptop.agent.observer.model.store import Store
from ddptop.agent.rank.records.digest import Digest
from ddptop.agent.run.rundir import Run

WORLD = wire.EACH_RECORD + 2
RUN = Run("many", "id", "many.py", (), WORLD, "gloo", "cpu", 10**9, False)
SLOW = 5


def step(rank: int, number: int) -> wire.Step:
    """Return a record of a rank that loads data for 30 ms, or for 60 where it is the slow one."""
    data = (60 if rank == SLOW else 30) * 10**6 + rank
    wall = 120 * 10**6
    return wire.Step(
        number, number, number * wall, wall, data, 20 * 10**6, 30 * 10**6, 10**6, wall - data - 52 * 10**6, 10**6,
        1 / number, 8, (wire.Collective("all_reduce", 0, 3 * 10**6, 8, 1),), {"lr": 0.1},
    )  # fmt: skip


def beat(rank: int, number: int, at: float) -> wire.Beat:
    return wire.Beat(rank, int(at * 1e9), "running", "forward", number, int(at * 1e9), number, memory_bytes=1 << 30)


def follow(store: Store, seconds: int, *, silent: int | None = None) -> float:
    """Let all ranks run for a while, ten steps a second, and return the time then."""
    digests = [Digest(rank) for rank in range(WORLD)]
    now = 2.0
    for second in range(seconds):
        now = 2.0 + second
        for rank, digest in enumerate(digests):
            for number in range(10 * second + 1, 10 * second + 11):
                digest.add(step(rank, number))
            summary = digest.close()
            assert summary is not None
            if rank != silent:
                store.apply(summary, now)
                store.apply(beat(rank, summary.step, now), now)
    return now


def test_summaries_make_the_same_frame_as_records():
    """Step time, phases, loss, latency, rate and custom metrics are those of a store that has every record."""
    brief, full = Store(RUN, brief=True), Store(replace_world(1))
    now = follow(brief, 2)
    full.apply(beat(0, 20, now), now)
    full.apply(wire.Steps(0, tuple(step(0, number) for number in range(1, 21))), now)
    told, known = frame_at(brief, now).ranks[0], frame_at(full, now).ranks[0]
    for field in ("step", "step_ms", "phases_ms", "loss", "samples_per_s", "metrics"):
        assert getattr(told, field) == pytest.approx(getattr(known, field)), field
    assert told.allreduce_ms.p50 == pytest.approx(known.allreduce_ms.p50)
    frame = frame_at(brief, now)
    assert (frame.step, frame.step_ms, frame.slowest) == (20, 120, SLOW)
    assert frame.logged == ("lr",)
    assert frame.values("state") == ["running"] * WORLD


def replace_world(world: int) -> Run:
    return Run("one", "id", "many.py", (), world, "gloo", "cpu", 10**9, False)


def test_missing_summaries_are_counted_and_repeated_ones_are_not():
    """A gap in their numbers is what was lost; the one that greets a newcomer may be known already."""
    store = Store(RUN, brief=True)
    first = wire.Summary(7, 4, 10**9, 40, 40, 10, 10**8, 1, 1, 1, 1, 1, 1)
    for summary in (first, first, wire.Summary(7, 9, 2 * 10**9, 90, 90, 10, 10**8, 1, 1, 1, 1, 1, 1)):
        store.apply(summary, 2.0)
    assert frame_at(store, 2.0).ranks[7].missed == 4


def test_a_watched_rank_has_its_records_from_the_first_one():
    """Once it is looked at, its curve is that of its records, not of its summaries."""
    store = Store(RUN, brief=True)
    now = follow(store, 3)
    store.watch(frozenset({9}))
    store.apply(wire.Steps(9, tuple(step(9, number) for number in range(21, 32))), now)
    rank = frame_at(store, now).ranks[9]
    assert len(rank.losses) == 11
    assert rank.missed == 0, "what was before the first record that came is not missed"
