"""Frames are made of a store without changing it; what goes by is told by `advance`, once."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.fakes.observers import all_ranks

from ddptop.agent import wire
from ddptop.agent.observer.model.framer import Framer
from ddptop.agent.observer.model.ranks.recent import Latencies, RecentSteps
from ddptop.agent.observer.model.situation import Liveness, Supervision
from ddptop.agent.observer.model.store import Store
from ddptop.agent.run.rundir import Member, Process, Run
from ddptop.agent.wire.frames import RankFrame, RunFrame

MS = 10**6


def run_of(world: int) -> Run:
    """Return the record of a run that somebody started by hand."""
    return Run("toy-1", "id", "toy.py", (), world, "gloo", "cpu", 10**9, False)


def hear(store: Store, rank: int, number: int, now: float) -> None:
    """Let a rank tell of a step and that it lives."""
    at = int(now * 1e9)
    step = wire.Step(number, number, at, 100 * MS, 40 * MS, 20 * MS, 20 * MS, 10 * MS, 5 * MS, 5 * MS, 1 / number, 8)
    summary = wire.Summary(rank, number, at, number, number, 1, 100 * MS, MS, MS, MS, MS, MS, MS)
    for message in (wire.Steps(rank, (step,)), summary, wire.Beat(rank, at, "running", "forward", number, at, number)):
        store.apply(message, now)


def drawn(framer: Framer) -> tuple[RunFrame, tuple[RankFrame, ...]]:
    """Return the frames of a run and of all its ranks."""
    return framer.frame(), all_ranks(framer)


class _Known(pickle.Pickler):
    """Writes down what was heard, and not what was worked out of it."""

    def reducer_override(self, value: Any) -> Any:
        match value:
            case RecentSteps():
                return list, (list(value),)
            case Latencies():
                return list, ([*value._held, *value._new],)
        return NotImplemented


def known(store: Store) -> bytes:
    """Return every attribute of the store."""
    written = io.BytesIO()
    _Known(written).dump(store)
    return written.getvalue()


@settings(deadline=None, max_examples=40)
@given(
    world=st.sampled_from([2, 10]),
    brief=st.booleans(),
    said=st.lists(st.tuples(st.sampled_from(["hear", "lose", "advance", "pause"]), st.integers(0, 9)), max_size=30),
)
def test_a_frame_is_made_without_changing_the_store(world: int, brief: bool, said: list[tuple[str, int]]) -> None:
    """Whatever has come, two frames in a row are equal, and every attribute of the store is what it was."""
    store = Store(run_of(world), brief=brief)
    framer, steps = Framer(store), [0] * world
    for number, (event, of) in enumerate(said):
        now, rank = 2.0 + number, of % world
        match event:
            case "hear":
                steps[rank] += 1
                hear(store, rank, steps[rank], now)
            case "lose":
                store.know_liveness(Liveness("running", True, False, frozenset(range(world)) - {rank}))
            case "pause":
                store.supervise(Supervision("paused"), now)
            case _:
                store.advance(now)
        before = known(store)
        assert drawn(framer) == drawn(framer) == drawn(Framer(store))
        assert known(store) == before


def test_a_frame_has_what_all_ranks_have_in_common() -> None:
    """The host and the device of all ranks are the frame's, and nobody's where two ranks differ or none is known."""
    store = Store(run_of(2))
    framer = Framer(store)
    assert (framer.frame().one_host, framer.frame().one_device) == (None, None)
    for hosts, devices, common in (
        (("a", "a"), ("cpu", "cpu"), ("a", "cpu")),
        (("a", "a"), ("cuda:0", "cuda:1"), ("a", None)),
        (("a", "b"), ("cuda:0", "cuda:0"), (None, "cuda:0")),
    ):
        for rank in range(2):
            store.ranks[rank].member = Member(rank, rank, 2, Process(100 + rank, 1.0), hosts[rank], 0, "", "", None)
            store.apply(wire.Beat(rank, 10**9, "running", "forward", 1, 10**9, 1, device=devices[rank]), 1.0)
        shown = framer.frame()
        assert (shown.one_host, shown.one_device) == common
        assert tuple(rank.device for rank in all_ranks(framer)) == devices


def test_a_frame_says_which_action_waits_for_whom_until_the_run_is_over() -> None:
    """Whoever looks on sees it, whoever has begun it."""
    said = "pause by ada (dashboard, pts/3)", "pausing: waiting for rank 1"
    for state, shown in (("running", said), ("killed", ("", ""))):
        store = Store(replace(run_of(2), state=state))
        store.supervise(Supervision("running", action=said[0], waiting=said[1]), 1.0)
        frame = Framer(store).frame()
        assert (frame.state == "killed", frame.action, frame.waiting) == (state == "killed", *shown)


def test_what_time_alone_changes_is_told_once_and_whoever_looks() -> None:
    """A rank that falls silent is noted when time moves on, however many frames are made, or none."""
    store = Store(run_of(2))
    framer = Framer(store)
    for rank in (0, 1):
        hear(store, rank, 1, 10.0)
    store.advance(10.0)
    assert [rank.state for rank in all_ranks(framer)] == ["running", "running"]
    hear(store, 1, 2, 60.0)
    assert [rank.state for rank in all_ranks(framer)] == ["running", "running"], "no time has gone by"
    for now in (60.0, 60.5):
        store.advance(now)
    told = [event.text for event in framer.frame().events]
    assert told.count("rank 0 is silent") == 1
    assert framer.rank(0).state == "silent"


def test_a_short_frame_of_a_rank_lacks_its_earlier_losses_alone():
    """Of a rank that was heard, and of one that was not."""
    store = Store(run_of(2), brief=True)
    for number in (1, 2, 3):
        hear(store, 0, number, 10.0 + number)
    store.advance(13.0)
    framer = Framer(store)
    framer.frame()
    assert framer.rank(0).losses
    for rank in range(2):
        assert framer.rank(rank, short=True) == replace(framer.rank(rank), losses=())


def test_mfu_is_the_work_of_the_ranks_as_a_part_of_what_their_devices_can_do():
    """Of each rank by its own step; of the group over the ranks whose device is known; none while nothing moves."""
    run = run_of(4)
    store = Store(run)
    # Operations of a step, and those a second at the peak; steps take 100 ms.
    work = ((2e12, 100e12), (1e12, 50e12), (4e12, None), (None, 100e12))
    for rank, (flops, peak) in enumerate(work):
        hear(store, rank, 1, 2.0)
        store.apply(wire.Beat(rank, 2 * 10**9, "running", "forward", 1, 2 * 10**9, 1, flops=flops, peak=peak), 2.0)
    store.advance(2.1)
    frame, ranks = drawn(Framer(store))
    assert [rank.mfu for rank in ranks] == pytest.approx([0.2, 0.2, None, None])
    assert [rank.flops_per_s for rank in ranks] == pytest.approx([20e12, 10e12, 40e12, None])
    assert frame.mfu == pytest.approx((20 + 10) / (100 + 50))
    assert frame.flops_per_s == pytest.approx(70e12)
    store.advance(1000.0)
    frame, ranks = drawn(Framer(store))
    assert (frame.mfu, frame.flops_per_s, ranks[0].mfu, ranks[0].flops_per_s) == (None, None, None, None)
    assert ranks[0].flops == 2e12


@pytest.mark.parametrize(("device", "said"), [("cpu", "8 threads a rank for 2 ranks on 2 cores"), ("cuda:0", "")])
def test_a_frame_says_of_ranks_on_the_cpu_alone_that_their_threads_are_a_crowd(device: str, said: str) -> None:
    """Those that train on a device of their own seldom use them."""
    store, threads = Store(run_of(2)), wire.Threads(8, 1, 2.0)
    for rank in range(2):
        store.apply(wire.Beat(rank, 2 * 10**9, "running", "forward", 1, None, 1, device=device, threads=threads), 2.0)
    store.advance(2.1)
    assert Framer(store).frame().placement == said


def seen(rank: int, at: float, wait: float, **more: Any) -> wire.Sampled:
    """Return looks of three seconds at a rank."""
    lines = (wire.SampledLine("forward", "train.py:31 load", 0.5),)
    shares = {"forward": 1 - wait, "wait": wait}
    return wire.Sampled(rank, int(at * 1e9), 3 * 10**9, 30, shares, lines, cost_percent=1.5, blocks=20, **more)


def test_of_ranks_seen_from_outside_is_told_what_looks_show_and_nothing_else() -> None:
    """Steps, loss and times are not known, never zero; shares are of the last half minute, with their error."""
    store = Store(replace(run_of(2), outside=True))
    framer = Framer(store)
    process = Process(1, 1.0, "boot")
    store.know_members({rank: Member(rank, rank, 2, process, "h", 0, "", "", None, by_agent=False) for rank in (0, 1)})
    for rank, waits in ((0, (0.9, 0.2, 0.4)), (1, (0.0, 0.0, 0.0))):
        for at, wait in zip((4.0, 40.0, 44.0), waits, strict=True):
            store.apply(wire.Beat(rank, int(at * 1e9), "running", "forward", 0, None, 0, generation=0), at)
            store.apply(seen(rank, at, wait), at)
    store.advance(45.0)
    run, ranks = drawn(framer)
    assert (run.known_by, run.state, run.step, run.loss, run.step_ms, run.phases_ms) == (
        "outside",
        "running",
        *[None] * 4,
    )
    assert (ranks[0].known_by, ranks[0].step, ranks[0].loss, ranks[0].phases_ms) == ("outside", None, None, None)
    looks = ranks[0].by_looks
    assert looks is not None
    assert looks.shares == pytest.approx({"wait": 0.3, "forward": 0.7})
    # Of 40 independent looks: the root of 0.3 * 0.7 / 40.
    assert looks.errors["wait"] == pytest.approx(0.072, abs=0.004)
    assert (looks.looks, looks.line, looks.line_phase, looks.line_share) == (60, "train.py:31 load", "forward", 0.5)
    assert run.by_looks is not None
    assert run.by_looks.shares["wait"] == pytest.approx(0.15)
    assert not run.from_log
    assert not ranks[0].from_log

    # Rank 0 writes the log, as nearly always.
    store.apply(seen(0, 48.0, 0.4, log_step=120, log_total=400, log_loss=2.5, log_at_ns=48 * 10**9), 48.0)
    store.advance(48.0)
    run, ranks = drawn(framer)
    assert (run.step, run.total_steps, run.total_by, run.loss, run.from_log) == (120, 400, "its log", 2.5, True)
    assert [(each.step, each.from_log) for each in ranks] == [(120, True), (None, False)]

    # Of a process that nobody has looked at for a while, what it did then says nothing of now.
    store.apply(seen(1, 60.0, 0.4), 60.0)
    store.advance(79.0)
    assert [each.by_looks is None for each in drawn(framer)[1]] == [True, False]

    # An agent has joined them, and counts the steps from there.
    store.know_members({rank: Member(rank, rank, 2, process, "h", 0, "p", "c", None) for rank in (0, 1)})
    for rank in (0, 1):
        hear(store, rank, 7, 80.0)
    store.advance(80.0)
    run, ranks = drawn(framer)
    assert (run.known_by, ranks[0].known_by, ranks[0].by_looks, run.step) == ("joined", "joined", None, 7)
