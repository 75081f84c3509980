"""A group of many ranks: summaries of all, records of those that are looked at, and the same frame from both."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec
import pytest
import zmq
from support.harness import until
from support.screens.frames import frame_at

from ddptop.agent import wire
from ddptop.agent.rank.records.digest import Digest
from ddptop.agent.run import rundir
from ddptop.agent.run.files.private import seal
from ddptop.agent.run.rundir import Member, Process, Run
from ddptop.tui.link.live import DETAILED, Link
from ddptop.tui.link.sockets import MOST_WATCHED, REST_S
from ddptop.tui.link.source import frame_now
from ddptop.tui.model import framer
from ddptop.tui.model.frame import RankFrame
from ddptop.tui.model.history.history import History
from ddptop.tui.model.ranks.rank import RankModel
from ddptop.tui.model.store import Store

WORLD = DETAILED + 2
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
    for field in ("step", "step_ms", "phases_ms", "loss", "allreduce_p50_ms", "samples_per_s", "metrics"):
        assert getattr(told, field) == pytest.approx(getattr(known, field)), field
    frame = frame_at(brief, now)
    assert (frame.step, frame.step_ms, frame.slowest) == (20, 120, SLOW)
    assert frame.logged == {"lr"}
    assert frame.values("state") == ["running"] * WORLD


def replace_world(world: int) -> Run:
    return Run("one", "id", "many.py", (), world, "gloo", "cpu", 10**9, False)


def test_a_slow_rank_is_named_from_summaries_alone():
    """A second of all ranks counts as one step of the group; the verdict names rank, phase and cost."""
    store = Store(RUN, brief=True)
    verdict = frame_at(store, follow(store, 60)).verdict
    assert verdict is not None
    assert (verdict.kind, verdict.rank, verdict.phase) == ("slow_rank", SLOW, "data")
    assert verdict.cost_ms == pytest.approx(30, rel=0.05)


def test_missing_summaries_are_counted_and_repeated_ones_are_not():
    """A gap in their numbers is what was lost; the one that greets a newcomer may be known already."""
    store = Store(RUN, brief=True)
    first = wire.Summary(7, 4, 10**9, 40, 40, 10, 10**8, 1, 1, 1, 1, 1, 1)
    for summary in (first, first, wire.Summary(7, 9, 2 * 10**9, 90, 90, 10, 10**8, 1, 1, 1, 1, 1, 1)):
        store.apply(summary, 2.0)
    assert frame_at(store, 2.0).ranks[7].missed == 4


def test_only_ranks_that_are_looked_at_are_drawn_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame of many ranks makes the frame of a rank when it is first asked for, and holds it."""
    store = Store(RUN, brief=True)
    now = follow(store, 1)
    drawn: list[int] = []
    made = framer.rank_frame

    def counted(model: RankModel, *given: Any) -> RankFrame:
        drawn.append(model.rank)
        return made(model, *given)

    monkeypatch.setattr(framer, "rank_frame", counted)
    frame = frame_at(store, now)
    assert drawn == []
    assert [rank.rank for rank in frame.ranks[3:5]] == [3, 4]
    assert frame.rank(4) is frame.ranks[4]
    assert drawn == [3, 4]


def test_a_watched_rank_has_its_records_from_the_first_one():
    """Watching asks for the history; letting go leaves the frame to summaries."""
    history = History(RUN.world)
    store = Store(RUN, history=history, brief=True)
    now = follow(store, 3)
    assert store.gaps() == {}
    store.watch(frozenset({9}))
    store.apply(wire.Steps(9, (step(9, 31),)), now)
    assert store.gaps() == {9: 1}
    store.fill(9, [step(9, number) for number in (1, 11, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30)], last=True)
    rank = frame_at(store, now).ranks[9]
    assert [step.step for step in history.steps.by_rank(9)] == [1, 11, *range(21, 32)]
    assert rank.missed == 0, "what was left out on purpose is not missed"
    store.watch(frozenset())
    assert store.gaps() == {}


class Rank:
    """The sockets of a rank in this process; it knows who subscribes to what."""

    def __init__(self, context: zmq.Context[Any], directory: rundir.RunDir, rank: int) -> None:
        self.rank = rank
        self.topics: set[bytes] = set()
        self.pub, self.cmd = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        for socket, kind in ((self.pub, "pub"), (self.cmd, "cmd")):
            socket.linger = 0
            socket.bind(directory.address(rank, kind))
            seal(directory.address(rank, kind))
        self.pub.setsockopt(zmq.XPUB_VERBOSER, 1)
        me = rundir.identify(os.getpid())
        assert me is not None
        directory.write_member(
            Member(rank, rank, WORLD, me, "host", 0,
                   directory.address(rank, "pub"), directory.address(rank, "cmd"), None)
        )  # fmt: skip

    def listen(self) -> None:
        while self.pub.poll(0):
            message = self.pub.recv()
            (self.topics.add if message[:1] == b"\x01" else self.topics.discard)(message[1:])


def test_a_watched_rank_may_end_or_not_be_there():
    """What is missing of one that has ended, and of a number that is none, is asked of nobody; the frames go on."""
    directory = rundir.create(msgspec.structs.replace(RUN, run="ends", run_id="ends"))
    with zmq.Context() as context:
        ranks = [Rank(context, directory, rank) for rank in (0, 1)]
        link = Link(directory, "test")
        try:
            link.watch(frozenset({1, 10**6}))
            link.store.watch(frozenset({1, 10**6}))
            beats = [beat(rank, 9, time.time()) for rank in (0, 1)]
            for each in beats:
                link.store.apply(each, time.time())
            member = directory.members()[1]
            gone = Process(2**22 + 1, 0.0)
            directory.write_member(msgspec.structs.replace(member, process=gone, ended="exit code 1"))
            os.utime(directory.path / "ranks", (1, 1))
            for _ in range(3):
                link._look_due = link._sockets._watch_due = 0.0
                link.poll()
                assert len(frame_now(link).ranks) == RUN.world
        finally:
            link.close()
            for rank in ranks:
                rank.pub.close()
                rank.cmd.close()


def test_ranks_out_of_sight_send_no_records():
    """Of a large group only the watched ranks are asked for steps, over the sockets themselves."""
    directory = rundir.create(RUN)
    with zmq.Context() as context:
        ranks = [Rank(context, directory, rank) for rank in (0, 1, 2)]
        link = Link(directory, "test")
        try:

            def told(rank: int) -> set[bytes]:
                link.poll()
                ranks[rank].listen()
                return ranks[rank].topics

            until(lambda: all(wire.TOPIC_SUMMARY in told(rank) for rank in (0, 1, 2)), "all are listened to")
            link.watch(frozenset({1}))
            until(lambda: wire.TOPIC_STEPS in told(1), "the records of the one that is watched")
            assert not any({wire.TOPIC_STEPS, b""} & told(rank) for rank in (0, 2))
            link.watch(frozenset({2}))
            until(lambda: wire.TOPIC_STEPS in told(2) and wire.TOPIC_STEPS not in told(1), "of another one")
        finally:
            link.close()
            for rank in ranks:
                rank.pub.close()
                rank.cmd.close()


def test_who_is_in_sight_for_long_enough_is_followed_and_nobody_else() -> None:
    """Not while somebody scrolls past, not a rank whose socket is not the owner's, never more than a bound."""
    now = 0.0
    link = Link(rundir.create(msgspec.structs.replace(RUN, run="sight", run_id="sight")), "test", clock=lambda: now)
    connected: list[str] = []

    class Near:
        connect, disconnect = connected.append, connected.remove

    sockets = link._sockets
    try:
        sockets._listened = set(range(100))
        near, sockets._near = sockets._near, Near()  # type: ignore[assignment] # what it needs of a listener
        for wanted, followed in (
            ({5}, {5}),
            ({5, 6, 200}, {5, 6}),
            (set(range(100)), set(range(MOST_WATCHED))),
            (set(), set()),
        ):
            before = sorted(connected)
            link.watch(frozenset(wanted))
            now += REST_S / 2
            sockets.follow_watched()
            assert sorted(connected) == before
            now += REST_S / 2
            for _ in range(2):
                sockets.follow_watched()
            assert sorted(connected) == sorted(link.directory.address(rank, "pub") for rank in followed)
            assert link.store._watched == followed
    finally:
        sockets._near = near
        link.close()


@pytest.mark.parametrize("near", [False, True], ids=["heard by all", "watched"])
def test_who_sends_too_much_is_cut_off_and_heard_again(near: bool):
    """A message above the bound ends the connection to its rank alone; what is in order later is heard."""
    directory = rundir.create(msgspec.structs.replace(RUN, run=f"large-{near}", run_id=f"large-{near}"))
    with zmq.Context() as context:
        ranks = [Rank(context, directory, rank) for rank in (0, 1)]
        link = Link(directory, "test")

        def heard(rank: int, number: int) -> bool:
            ranks[rank].pub.send_multipart([wire.TOPIC_BEAT, wire.encode(beat(rank, number, time.time()))])
            link.poll()
            for each in ranks:
                each.listen()
            return frame_now(link).ranks[rank].step == number

        try:
            until(lambda: all(heard(rank, 1) for rank in (0, 1)), "both ranks")
            topic = wire.TOPIC_STEPS if near else wire.TOPIC_BEAT
            if near:
                link.watch(frozenset({0}))
                until(lambda: heard(0, 2) and topic in ranks[0].topics, "the records that are watched")
            ranks[0].pub.send_multipart([topic, bytes(wire.MAX_MESSAGE_BYTES)])
            until(lambda: heard(1, 3), "the other rank")
            assert topic in ranks[0].topics, "what is no larger than the bound ends no connection"
            ranks[0].pub.send_multipart([topic, bytes(wire.MAX_MESSAGE_BYTES + 1)])
            until(lambda: heard(1, 4) and topic not in ranks[0].topics, "the end of its connection alone")
            until(lambda: heard(0, 5) and topic in ranks[0].topics, "another connection")
        finally:
            link.close()
            for rank in ranks:
                rank.pub.close()
                rank.cmd.close()
