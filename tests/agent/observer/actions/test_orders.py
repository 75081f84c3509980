"""A kill over hosts: whichever observer is asked, both hosts end, and it tells the sum; who is cut off ends its own."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.fakes.events import SaidEvents
from support.fakes.hosts import Net, Side
from support.harness import WAIT, until

from ddptop.agent import wire
from ddptop.agent.observer.actions.orders import Orders
from ddptop.agent.observer.end import run_ending
from ddptop.agent.observer.hosts.ends import OtherEnds
from ddptop.agent.run import hosts, rundir
from ddptop.agent.run.base import BASE_VARIABLE
from ddptop.agent.run.hosts import FarRanks
from ddptop.agent.run.rundir import MARKER, Member, Run, RunDir, identify

STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); {WAIT}"


@dataclass
class Place:
    """One host: its directory, its ranks, its orders, and what these have said."""

    side: Side
    directory: RunDir
    run: Run
    ranks: dict[int, subprocess.Popen[str]]
    told: SaidEvents = field(default_factory=SaidEvents)
    answers: dict[bytes, wire.Reply] = field(default_factory=dict)
    orders: Orders = field(init=False)

    def __post_init__(self) -> None:
        """Take orders."""
        self.orders = Orders(
            self.directory,
            self.side.requests,
            self.told,
            others=OtherEnds(self.side.state.host, self.side),
            host=self.side.state.host,
        )

    @property
    def events(self) -> list[wire.Event]:
        """What somebody has done."""
        return [event for event in self.told.all if event.who]

    @property
    def said(self) -> list[str]:
        """What was said besides."""
        return [event.text for event in self.told.all if not event.who]

    def turn(self) -> None:
        """Have a turn of the observer's main thread, and of its relay."""
        self.orders.turn(self.run)
        self.answers |= self.side.replies()

    def ask(self, command: wire.Command, asker: bytes = b"ada") -> None:
        """Ask the observer of this host."""
        self.side.requests.put(asker, command)

    @property
    def alive(self) -> list[int]:
        """The ranks whose process lives."""
        return [rank for rank, process in self.ranks.items() if process.poll() is None]


Two = Callable[..., tuple[Place, Place]]


@pytest.fixture
def two(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    """Make two hosts of two ranks each, which run a line of Python."""
    net, made = Net(), []

    def make(code: str = WAIT) -> tuple[Place, Place]:
        for number, ranks in ((1, (0, 1)), (2, (2, 3))):
            (runtime / str(number)).mkdir(mode=0o700)
            monkeypatch.setenv(BASE_VARIABLE, str(runtime / str(number)))
            run = Run(
                "train", secrets.token_hex(8), "p", (), 4, None, None, time.time_ns(), False, local_world=2, nodes=2
            )
            directory = rundir.create(run)
            started = {}
            for rank in ranks:
                environment = os.environ | {MARKER: run.run_id}
                process = subprocess.Popen(
                    [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
                )
                if code == STUBBORN:
                    assert process.stdout is not None
                    process.stdout.readline()
                identity = identify(process.pid)
                assert identity is not None
                directory.write_member(Member(rank, rank % 2, 4, identity, f"node{number}", 0, "", "", None))
                started[rank] = process
            made.append(Place(net.side(f"node{number}", ranks), directory, run, started))
        one, other = made
        hosts.write_far(one.directory.path, FarRanks(tuple(other.directory.members().values())))
        hosts.write_far(other.directory.path, FarRanks(tuple(one.directory.members().values())))
        return one, other

    yield make
    for place in made:
        place.orders.close()
        for process in place.ranks.values():
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    net.close()


def _turn_until(places: tuple[Place, ...], condition: Callable[[], object], what: str) -> None:
    def turned() -> object:
        for place in places:
            place.turn()
        return condition()

    until(turned, what)


def _conclude(*places: Place) -> None:
    for place in places:
        place.orders.close()
        place.answers |= place.side.replies()


@pytest.mark.parametrize("at", [0, 1])
def test_a_kill_asked_of_either_observer_ends_both_hosts(two: Two, at: int) -> None:
    """Nothing is left on any, the asker gets the sum, and one event tells who asked."""
    places = two()
    places[at].ask(wire.Kill(7, 1.0, who="ada"))
    places[at].turn()
    _turn_until(places, lambda: not any(place.alive or place.orders.ending for place in places), "both hosts to end")
    _conclude(*places)
    reply = places[at].answers[b"ada"]
    assert (reply.id, reply.done, reply.text) == (7, True, "4 ranks on 2 hosts ended, 0 left")
    assert [event.text for place in places for event in place.events] == ["kill requested · ada"]
    assert {place.orders.killed_by for place in places} == {"ada"}
    assert {place.directory.read().killed_by for place in places} == {"ada"}


@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_who_is_in_a_hurry_waits_for_nobody(two: Two, first: int, second: int) -> None:
    """A second kill with less grace ends all hosts within that, is told, and both askers get the sum.

    One with more grace changes nothing. Meanwhile the grace of the first passes on both hosts at the same time.
    """
    places = two(STUBBORN)
    places[first].ask(wire.Kill(7, 600.0, who="ada"))
    _turn_until(places, lambda: all(place.orders.killed_by for place in places), "it begins on both hosts")
    places[second].ask(wire.Kill(8, 900.0, who="eve"), b"eve")
    places[second].ask(wire.Kill(9, 0.5, who="bob"), b"bob")
    _turn_until(places, lambda: not any(place.alive or place.orders.ending for place in places), "both hosts to end")
    _conclude(*places)
    for at, requester in ((first, b"ada"), (second, b"eve"), (second, b"bob")):
        assert places[at].answers[requester].text == "4 ranks on 2 hosts ended, 0 left"
    told = [event.text for place in places for event in place.events]
    assert told == ["kill requested · ada", "kill within 0.5 s requested · bob"]
    for place in places:
        assert any("SIGKILL" in line and place.side.state.host in line for line in place.said)


def test_a_branch_whose_head_does_not_answer_ends_its_own_host_and_says_so(two: Two) -> None:
    """After two seconds, and what is unknown is told."""
    one, other = two()
    one.side.answers = False
    other.ask(wire.Kill(7, 0.5, who="ada"))
    _turn_until((other,), lambda: not other.orders.ending and other.orders.outcome, "the branch to end")
    _conclude(other)
    reply = other.answers[b"ada"]
    assert reply.text == "2 ranks on node2 ended, 0 left; node1 did not answer: 2 ranks unknown"
    assert not reply.done
    assert any("the head of the run does not answer" in line for line in other.said)
    assert one.alive == [0, 1]


def test_a_branch_without_a_link_ends_its_own_host_at_once(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for a head that is known to be out of reach."""
    one, other = two()
    other.side.linked = False
    monkeypatch.setattr(run_ending, "_HEAD_S", 1e6)
    other.ask(wire.Kill(7, 0.5, who="ada"))
    _turn_until((other,), lambda: not other.orders.ending and other.orders.outcome, "the branch to end")
    _conclude(other)
    assert other.answers[b"ada"].text.endswith("node1 did not answer: 2 ranks unknown")
    assert one.alive == [0, 1]


def test_a_branch_that_does_not_answer_is_named_with_its_ranks(two: Two) -> None:
    """The head ends its own host, and gives a silent one up after three seconds."""
    one, other = two()
    other.side.answers = False
    other.side.is_("silent")
    one.ask(wire.Kill(7, 0.5, who="ada"))
    one.turn()
    _turn_until((one,), lambda: not one.orders.ending, "the head to end")
    _conclude(one)
    assert one.answers[b"ada"].text == "2 ranks on node1 ended, 0 left; node2 did not answer: 2 ranks unknown"
    assert one.orders.left == "; node2 did not answer: 2 ranks unknown"


@pytest.mark.parametrize(("at", "rank"), [(0, 3), (1, 0), (1, 3), (0, 0)])
def test_a_rank_is_ended_by_the_observer_of_its_host(two: Two, at: int, rank: int) -> None:
    """Asked of either observer; the head knows that it was asked for, and the others live."""
    places = two()
    places[at].ask(wire.Kill(5, 1.0, rank=rank, who="ada"))
    _turn_until(places, lambda: b"ada" in places[at].answers, "an answer")
    reply = places[at].answers[b"ada"]
    assert (reply.id, reply.done) == (5, True)
    assert sorted([*places[0].alive, *places[1].alive]) == [each for each in range(4) if each != rank]
    assert places[0].orders.ranks_killed_by == {rank: "ada"}


def test_a_signal_goes_to_all_hosts(two: Two) -> None:
    """SIGSTOP for the run reaches each of its ranks, and the answer tells so for each host."""
    places = two()
    places[1].ask(wire.Kill(5, 0.0, who="ada", signal=signal.SIGSTOP))
    _turn_until(places, lambda: b"ada" in places[1].answers, "an answer")
    text = places[1].answers[b"ada"].text
    assert "node1: SIGSTOP to 2 ranks" in text
    assert text.count("SIGSTOP to 2 ranks") == 2
    for place in places:
        for process in place.ranks.values():
            stat = Path(f"/proc/{process.pid}/stat")
            # It takes the signal when it runs next.
            until(lambda stat=stat: stat.read_text().rpartition(")")[2].split()[0] == "T", "the stop")  # type: ignore[misc]
            process.send_signal(signal.SIGCONT)


def test_a_process_on_another_host_is_named_with_its_host(two: Two) -> None:
    """A pid is of this host, unless another is named; one of a host that is not known is refused."""
    one, other = two()
    pid = other.ranks[3].pid
    identity = identify(pid)
    assert identity is not None
    one.ask(wire.Kill(5, 1.0, pid=pid, started=identity.started, host="node2", who="ada"))
    _turn_until((one, other), lambda: b"ada" in one.answers, "an answer")
    assert one.answers[b"ada"].done
    assert (one.alive, other.alive) == ([0, 1], [2])
    one.ask(wire.Kill(6, 1.0, pid=pid, started=1.0, host="node9"), b"eve")
    _turn_until((one,), lambda: b"eve" in one.answers, "an answer")
    assert "node9" in one.answers[b"eve"].text
