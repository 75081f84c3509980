"""The end of a run over hosts: who is waited for, for how long, and what is told of whom is lost."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from support.fakes.hosts import Net

from ddptop.agent import wire
from ddptop.agent.observer.hosts.ends import OtherEnds
from ddptop.agent.observer.hosts.ends import time_of as at
from ddptop.agent.run import ends
from ddptop.agent.run.ends import Death
from ddptop.agent.run.hosts import FarRanks
from ddptop.agent.run.records import Ended
from ddptop.agent.run.rundir import Member, Process

HEARD_NS = 1_700_000_000_000_000_000


class Time:
    """A clock."""

    def __init__(self) -> None:
        self.now = 50.0

    def clock(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def time() -> Time:
    """Return a clock."""
    return Time()


@pytest.fixture
def net() -> Iterator[Net]:
    """Return two hosts of two ranks."""
    made = Net()
    made.side("node1", (0, 1))
    made.side("node2", (2, 3))
    yield made
    made.close()


def _member(rank: int, code: int | None, at_ns: int = 5_000_000_000) -> Member:
    ended = None if code is None else Ended(at_ns, code, "RuntimeError: boom" if code else None)
    return Member(rank, rank % 2, 4, Process(9, 1.0), "node2", 0, "ipc:///x", "ipc:///x", None, ended)


def _ended(*ranks: int, over: bool = False, code: int = 0) -> wire.HostEnd:
    deaths = [Death(rank, 5_000_000_000, code) for rank in ranks]
    members = msgspec.json.encode(FarRanks(tuple(_member(rank, code) for rank in ranks)))
    return wire.HostEnd(1, "node2", 3, ends.encode(3, deaths), members, over)


def test_the_head_waits_as_long_as_a_branch_is_heard_and_its_ranks_live(net: Net, time: Time) -> None:
    """An hour of evaluation on another host is part of the run; its end ends the run."""
    head = OtherEnds("node1", net.hosts["node1"], time.clock)
    assert head.are_awaited(over=True)
    time.now += 3600
    assert head.are_awaited(over=True)
    assert head.take(_ended(2, 3)) is None
    time.now += 1
    assert head.are_awaited(over=False)
    assert head.are_awaited(over=True)
    assert head.take(_ended(2, 3, over=True)) is None
    assert not head.are_awaited(over=True)


def test_a_silent_branch_is_given_up_ten_seconds_after_the_end_here(net: Net, time: Time) -> None:
    """Then the ranks of that host are unknown, and the record says so."""
    head = OtherEnds("node1", net.hosts["node1"], time.clock)
    net.hosts["node2"].is_("silent", heard_at=HEARD_NS / 1e9)
    assert head.are_awaited(over=True)
    time.now += 9.9
    assert head.are_awaited(over=True)
    time.now += 0.2
    assert not head.are_awaited(over=True)
    assert [(each.host, each.ranks) for each in head.reported.lost(net.hosts["node1"].hosts())] == [("node2", (2, 3))]


def test_a_launcher_that_waits_for_ranks_which_do_not_come_is_not_waited_for(net: Net, time: Time) -> None:
    """All ranks of the branch have ended and its torchrun has not: after ten seconds the run is over."""
    head = OtherEnds("node1", net.hosts["node1"], time.clock)
    assert head.take(_ended(2, 3, code=1)) is None
    assert head.are_awaited(over=True)
    time.now += 10.1
    assert not head.are_awaited(over=True)


def test_a_branch_waits_for_the_word_of_the_head_as_long_as_it_is_linked(net: Net, time: Time) -> None:
    """Its own end is not that of the run; without a link it waits ten seconds, and then goes by what it knows."""
    side = net.hosts["node2"]
    branch = OtherEnds("node2", side, time.clock)
    branch.turn(0, {}, {})
    time.now += 1000
    assert branch.are_awaited(over=True)
    side.linked = False
    assert branch.are_awaited(over=True)
    time.now += 10.1
    assert not branch.are_awaited(over=True)
    side.linked = True
    assert branch.are_awaited(over=True)
    assert branch.take(wire.Conclude(1, "failed", 1, "rank 0: boom", 0, "exception")) is None
    assert not branch.are_awaited(over=True)


def test_a_branch_tells_each_end_until_the_head_has_noted_it(net: Net, time: Time) -> None:
    """What the head did not answer is told again a second later; what it has noted is not."""
    side, head = net.hosts["node2"], net.hosts["node1"]
    branch = OtherEnds("node2", side, time.clock)
    head.answers = False
    members = {2: _member(2, 1)}
    for _ in range(3):
        branch.turn(0, {}, members)
    assert len(side.asked) == 1
    head.answers = True
    time.now += 1.1
    branch.turn(0, {}, members)
    for sender, command in head.requests.received():
        head.requests.reply(sender, wire.Reply(command.id, True, "noted"))
    head.replies()
    time.now += 5
    branch.turn(0, {}, members)
    assert len(side.asked) == 2


def test_ends_are_those_of_the_ranks_of_that_host_by_the_clock_of_the_head(net: Net, time: Time) -> None:
    """A branch whose clock is two seconds ahead; what it says of ranks of others is not believed."""
    net.hosts["node2"].is_("linked", offset_ms=2000.0)
    head = OtherEnds("node1", net.hosts["node1"], time.clock)
    assert head.take(_ended(0, 2, code=1)) is None
    assert head.ended() == {2}
    ended = head.reported.members[2].ended
    assert (head.reported.deaths[2].at_ns, ended and ended.at_ns) == (3_000_000_000, 3_000_000_000)
    assert head.reported.members[2].cmd == ""
    assert head.take(msgspec.structs.replace(_ended(3), host="node9")) is not None


def test_ends_of_the_last_generation_are_not_those_of_this_one(net: Net, time: Time) -> None:
    """A restart: what comes late of the ranks before it is not believed of their successors."""
    head = OtherEnds("node1", net.hosts["node1"], time.clock)
    head.reported.forget()
    assert head.take(_ended(2, 3, code=1)) is None
    assert not head.ended()


def test_lost_hosts_are_told_once_with_their_ranks_and_the_time(net: Net, time: Time) -> None:
    """Silence, return and loss are events of the head; a host whose part is over may go in peace."""
    head, other = OtherEnds("node1", net.hosts["node1"], time.clock), net.hosts["node2"]
    said: list[str] = []
    for state in ("linked", "silent", "silent", "gone", "linked"):
        other.is_(state, heard_at=HEARD_NS / 1e9)
        said += [each.text for each in head.turn(0, {}, {})]
    since = at(HEARD_NS)
    assert said[:3] == [
        "node2 is linked: ranks 2-3",
        f"node2 is not heard since {since}: ranks 2-3",
        f"node2 is gone, last heard at {since}: ranks 2-3",
    ]
    assert said[3].startswith("node2 is heard again after")
    assert head.take(_ended(2, 3, over=True)) is None
    other.is_("gone")
    assert head.turn(0, {}, {}) == []
    assert len(said) == 4


def test_the_head_alone_concludes(net: Net, time: Time) -> None:
    """A branch that tells the head how the run ended is refused, and so is a state that is no end."""
    head = OtherEnds("node1", net.hosts["node1"], time.clock)
    branch = OtherEnds("node2", net.hosts["node2"], time.clock)
    assert head.take(wire.Conclude(1, "failed")) is not None
    assert branch.take(wire.Conclude(1, "running")) is not None
    assert head.conclusion is None
    assert branch.conclusion is None


def test_a_branch_that_was_killed_waits_a_moment_for_how_the_run_ended(net: Net, time: Time) -> None:
    """It stays for the word of the head, whose record it has, and leaves without it after three seconds."""
    head = OtherEnds("node1", net.hosts["node1"], time.clock)
    assert not head.is_to_conclude()
    waits = OtherEnds("node2", net.hosts["node2"], time.clock)
    assert waits.is_to_conclude()
    time.now += 2.9
    assert waits.is_to_conclude()
    time.now += 0.2
    assert not waits.is_to_conclude()
    told = OtherEnds("node2", net.hosts["node2"], time.clock)
    assert told.take(wire.Conclude(1, "killed", ended_at_ns=7)) is None
    assert not told.is_to_conclude()
