"""What the dashboard knows of several hosts: who is heard, whose ranks, which clock."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from support.fakes.observers import all_ranks
from support.screens.frames import frame_at

from ddptop.agent import wire
from ddptop.agent.observer.model.framer import Framer
from ddptop.agent.observer.model.situation import Liveness
from ddptop.agent.observer.model.store import Store
from ddptop.agent.run.identity import Process
from ddptop.agent.run.records import Member, Run
from ddptop.agent.wire.frames import HostFrames
from ddptop.tui.model.sentences import not_linked, unheard_hosts, with_rank

NOW = 1_800_000_000.0
S = 1_000_000_000


def a_run(world: int = 4, here: int | None = 2, **changes: Any) -> Run:
    began = round((NOW - 100) * 1e9)
    run = Run("r", "id", "train.py", (), world, "gloo", "cpu", began, True, local_world=here, state="running")
    return msgspec.structs.replace(run, **changes)


def member(rank: int, host: str, world: int = 4) -> Member:
    return Member(rank, rank, world, Process(100 + rank, 1.0), host, 0, "", "", None)


def met(world: int = 4, each: int = 2, *, run: Run | None = None) -> Store:
    """Return a store that knows the records of `world` ranks on hosts of `each` so many; the first host is here."""
    store = Store(run or a_run(world, each))
    members = {rank: member(rank, f"node{rank // each}", world) for rank in range(world)}
    store.know_members(members, range(each, world))
    return store


def beat(rank: int, at: float, step: int = 5) -> wire.Beat:
    at_ns = round(at * 1e9)
    return wire.Beat(rank, at_ns, "running", "forward", step, at_ns, step)


def two(state: str = "linked", **changes: Any) -> tuple[wire.HostFrame, ...]:
    """Return two hosts of two ranks each, the second of which is in that state, heard 12 s ago."""
    far = wire.HostFrame("node1", state, (2, 3), NOW - 12)
    return wire.HostFrame("node0", "linked", (0, 1)), msgspec.structs.replace(far, **changes)


def test_ranks_of_a_silent_host_are_silent_and_say_since_when() -> None:
    """Also where the rank itself was heard a moment ago; those of the other host go on."""
    store = met()
    for rank in range(4):
        store.apply(beat(rank, NOW), NOW)
    store.know_hosts(two("silent"))
    shown = frame_at(store, NOW)
    assert [rank.state for rank in shown.ranks] == ["running", "running", "silent", "silent"]
    since = time.strftime("%H:%M:%S", time.localtime(NOW - 12))
    assert shown.ranks[2].activity == f"node1 is not heard since {since}" == unheard_hosts(shown)
    assert shown.state == "running"
    assert not any("silent" in event.text for event in shown.events), "the observer tells of the host, once"
    store.know_hosts(two("linked"))
    assert [rank.state for rank in frame_at(store, NOW + 1).ranks] == ["running"] * 4
    assert unheard_hosts(frame_at(store, NOW + 1)) == ""


def test_a_silent_rank_of_a_host_that_is_heard_is_an_event() -> None:
    """What the host does not explain is told, a moment later than of a rank of this host."""
    store = met()
    store.know_hosts(two())
    for rank in range(4):
        store.apply(beat(rank, NOW), NOW)
    frame_at(store, NOW)
    for later in range(1, 15):
        store.know_hosts(two())
        for rank in (0, 1, 2):
            store.apply(beat(rank, NOW + later), NOW + later)
        shown = frame_at(store, NOW + later)
    assert shown.ranks[3].state == "silent"
    assert [event.text for event in shown.events] == ["rank 3 is silent"]


def test_no_process_of_another_host_is_looked_up_here() -> None:
    """The process table says nothing of a rank on another host, whatever pid it has there."""
    store = met()
    for rank in range(4):
        store.apply(beat(rank, NOW), NOW)
    store.know_liveness(Liveness("running", True, False, frozenset({0}), at=NOW))
    shown = frame_at(store, NOW)
    assert [rank.state for rank in shown.ranks] == ["running", "lost", "running", "running"]
    assert [rank.far for rank in shown.ranks] == [False, False, True, True]


def test_the_observer_there_says_which_processes_are_gone() -> None:
    """A rank whose process has ended on another host is lost, and lives again once another one is there."""
    store = met()
    for rank in range(4):
        store.apply(beat(rank, NOW), NOW)
    store.know_hosts(two(gone=(3,)))
    assert [rank.state for rank in frame_at(store, NOW).ranks] == ["running"] * 3 + ["lost"]
    store.know_hosts(two())
    assert [rank.state for rank in frame_at(store, NOW).ranks] == ["running"] * 4


def test_ranks_on_hosts_that_are_not_linked_are_not_starting_for_ever() -> None:
    """Once the ranks of this host make steps the others cannot be starting; the steps that are known are shown."""
    store = Store(a_run())
    store.know_members({rank: member(rank, "node0") for rank in (0, 1)})
    shown = frame_at(store, NOW)
    assert [(rank.state, rank.activity) for rank in shown.ranks[2:]] == [("starting", "not reported yet")] * 2
    assert not_linked(shown) == "", "they are on their way"
    store.know_hosts([wire.HostFrame("node0", "alone", (0, 1))])
    for rank in (0, 1):
        store.apply(beat(rank, NOW), NOW)
    shown = frame_at(store, NOW)
    assert [(rank.state, rank.activity) for rank in shown.ranks[2:]] == [("silent", "not reported yet")] * 2
    assert (shown.state, shown.step) == ("running", 5)
    assert not_linked(shown) == "ranks 2-3 run on other hosts: not linked"
    store.hosts.why = "no store, no key file"
    assert not_linked(frame_at(store, NOW)) == "ranks 2-3 run on other hosts: not linked (no store, no key file)"
    assert not shown.hosts.several


def test_a_rank_that_has_not_come_is_told_with_its_host_where_that_is_known() -> None:
    """Its host has found it, and nothing was heard of it yet."""
    store = Store(a_run())
    store.know_members({rank: member(rank, "node0") for rank in (0, 1)})
    store.know_hosts([wire.HostFrame("node0", "linked", (0, 1)), wire.HostFrame("node1", "linked", (3,))])
    shown = frame_at(store, NOW)
    assert [rank.activity for rank in shown.ranks[2:]] == ["not reported yet", "starting on node1"]
    assert [rank.host for rank in shown.ranks] == ["node0", "node0", None, "node1"]


def test_a_run_on_one_host_has_no_hosts() -> None:
    """Nothing is grouped, and the host is that of all."""
    store = Store(a_run(2, None))
    store.know_members({rank: member(rank, "node0", 2) for rank in (0, 1)})
    shown = frame_at(store, NOW)
    assert (len(shown.hosts), shown.one_host, shown.unlinked) == (0, "node0", ())
    assert Framer(store, {1: "/log"}).rank(1).log is None, "a rank with a record is where that says"


def test_hosts_are_known_from_the_records_before_anybody_tells() -> None:
    """And of a run that is over, of which nobody tells any more."""
    shown = frame_at(met(), NOW)
    assert [(host.host, host.ranks, host.state) for host in shown.hosts] == [
        ("node0", (0, 1), ""), ("node1", (2, 3), ""),
    ]  # fmt: skip
    assert shown.one_host is None


def test_what_an_observer_says_of_hosts_is_not_believed_beyond_the_run() -> None:
    """Ranks that the run does not have, and a rank on two hosts; two hosts of one name are told apart."""
    store = Store(a_run())
    states = wire.HostFrame("node", "linked", (0, 1, 99, 1)), wire.HostFrame("node", "linked", (1, 2, 3))
    store.know_hosts(states)
    shown = frame_at(store, NOW)
    assert [(host.host, host.ranks) for host in shown.hosts] == [("node", (0, 1)), ("node (2)", (2, 3))]
    assert [rank.host for rank in shown.ranks] == ["node", "node", "node (2)", "node (2)"]


def test_times_of_another_clock_are_set_right() -> None:
    """A host an hour ahead, or behind: the age of a step is what it is, and nobody is stalled for it."""
    for hours in (1, -1):
        store = met()
        store.know_hosts(two(offset_ms=hours * 3.6e6, offset_error_ms=0.4))
        for rank in range(4):
            there = NOW + (hours * 3600 if rank > 1 else 0)
            store.apply(beat(rank, there - 0.5), NOW)
        shown = frame_at(store, NOW)
        assert [rank.state for rank in shown.ranks] == ["running"] * 4
        assert [round(rank.step_age_s or 0, 3) for rank in shown.ranks] == [0.5] * 4


def test_the_head_tells_by_its_own_clock() -> None:
    """Seen from the other host, which is two seconds ahead, it was heard at a time of the clock there."""
    store = Store(a_run())
    store.know_members({rank: member(rank, f"node{rank // 2}") for rank in range(4)}, (0, 1))
    silent = wire.HostFrame("node0", "silent", (0, 1), NOW - 12)
    here = wire.HostFrame("node1", "linked", (2, 3), NOW, 2000.0, 0.4)
    store.know_hosts([silent, here])
    assert frame_at(store, NOW + 2).hosts[0].heard_at == NOW - 10


def test_splits_over_hosts_need_the_offsets_of_their_clocks() -> None:
    """Waiting and transfer are those of one clock once the offset is known, and unknown before."""
    waits = []
    for offset_ms in (None, 5.0):
        store = met(2, 1, run=a_run(2, 1))
        error = None if offset_ms is None else 0.1
        far = wire.HostFrame("node1", "linked", (1,), None, offset_ms, error)
        store.know_hosts([wire.HostFrame("node0", "linked", (0,)), far])
        for rank, late_ms in ((0, 0), (1, 3)):
            end = round((NOW + 0.02) * 1e9) + (5_000_000 if rank else 0)
            call = wire.Collective("all_reduce", (10 + late_ms) * 1_000_000, (8 - late_ms) * 1_000_000, 8, 1)
            record = wire.Step(1, 1, end, 20_000_000, 0, 0, 0, 0, 0, 0, None, 1, (call,))
            store.apply(wire.Steps(rank, (record,)), NOW)
        shown = frame_at(store, NOW)
        waits.append([rank.allreduce_ms.wait for rank in shown.ranks])
    assert waits == [[None, None], [3.0, 0.0]]


def test_a_thousand_ranks_on_many_hosts_are_no_more_work_than_on_one(monkeypatch: Any) -> None:
    """Counted in frames of ranks that are made for four frames, for which the times of hosts are worked out once."""
    counted: dict[str, int] = {}

    def count(name: str, original: Any) -> Any:
        def counts(*arguments: Any, **more: Any) -> Any:
            counted[name] = counted.get(name, 0) + 1
            return original(*arguments, **more)

        return counts

    monkeypatch.setattr(Framer, "rank", count("ranks", Framer.rank))
    monkeypatch.setattr(HostFrames, "with_times", count("hosts", HostFrames.with_times))
    found = []
    for hosts in (1, 128):
        counted.clear()
        each = 1024 // hosts
        store = Store(a_run(1024, each), brief=True)
        members = {rank: member(rank, f"node{rank // each}", 1024) for rank in range(1024)}
        store.know_members(members, range(each, 1024))
        states = [
            wire.HostFrame(f"node{n}", "linked", tuple(range(n * each, (n + 1) * each)), None, 0.1 * n, 0.4)
            for n in range(hosts)
        ]
        store.know_hosts(states)
        for rank in range(1024):
            store.apply(beat(rank, NOW), NOW)
        drawing = Framer(store)
        for quarter in range(4):
            store.advance(NOW + quarter / 4)
            assert len(drawing.frame().on_hosts) == hosts
            assert [rank.state for rank in all_ranks(drawing)] == ["running"] * 1024
        found.append(dict(counted))
    assert found[0] == found[1] == {"ranks": 4 * 1024, "hosts": 1}


def test_the_host_of_a_rank_is_named_once() -> None:
    """In front of a text that has no rank, behind the rank of one that has, and not again where it is there."""
    assert with_rank("loader is slow", 4, "node2") == "rank 4 (node2): loader is slow"
    assert with_rank("rank 4 is silent", 4, "node2") == "rank 4 (node2) is silent"
    assert with_rank("rank 4: 86% of that delay is at train.py:88 load", 4).count("rank 4") == 1
    assert with_rank("the memory of rank 4 grows", 4) == "the memory of rank 4 grows"
    assert with_rank("rank 4: 86% of that delay", 4, "node2") == "rank 4 (node2): 86% of that delay"
    assert with_rank("rank 4 (node2) hangs", 4, "node2") == "rank 4 (node2) hangs"
    assert with_rank("ranks 4-7 differ", 4, "node2") == "ranks 4-7 differ"
    assert with_rank("rank 4 is silent", 4) == "rank 4 is silent"


@pytest.mark.parametrize(("gone", "unheard"), [((2, 3), False), ((2,), True), ((), True)])
def test_a_host_whose_ranks_have_all_ended_may_be_silent(gone: tuple[int, ...], unheard: bool) -> None:
    """Its connection ends after its ranks: that is no fault of it."""
    store = Store(a_run())
    states = wire.HostFrame("node0", "linked", (0, 1)), wire.HostFrame("node1", "gone", (2, 3), gone=gone)
    store.know_hosts(states)
    assert frame_at(store, NOW).hosts[1].is_unheard is unheard
