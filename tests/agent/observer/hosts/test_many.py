"""What a head does at once for many hosts: its cost does not grow with their number times what changes at them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.fakes.relays import NoJudge, several
from support.harness import until

from ddptop.agent import wire
from ddptop.agent.observer.hosts.elsewhere import Elsewhere
from ddptop.agent.observer.hosts.head import Head
from ddptop.agent.observer.hosts.link.frames import PUBLICATION
from ddptop.agent.observer.hosts.link.peer import Peer
from ddptop.agent.observer.hosts.questions import Questions
from ddptop.agent.observer.hosts.sides import Heard, ThisHost
from ddptop.agent.run.rundir import RunDir

HOSTS = 200


class CountedHead(Head):
    """A head that counts how often it looks at all hosts."""

    looks = 0

    def _settle(self) -> None:
        self.looks += 1
        super()._settle()


def _head() -> tuple[CountedHead, dict[bytes, Peer], ThisHost]:
    """Return a head of one host, the peers of its link, and this host, which has its news."""
    peers: dict[bytes, Peer] = {}
    run: Any = SimpleNamespace(world=2 * HOSTS + 2, node=0)
    common: Any = SimpleNamespace(is_ready=False)
    members: Any = {rank: SimpleNamespace(host="node0") for rank in (0, 1)}
    here = ThisHost(RunDir(Path()), run, Elsewhere(), common, members=members)
    wake: Any = SimpleNamespace(set=lambda: None)
    link: Any = SimpleNamespace(peers=peers, send=lambda *message: True)
    return CountedHead(here, link, Questions(wake, wake)), peers, here


def _come(number: int) -> tuple[bytes, Peer]:
    ranks = (2 * number + 2, 2 * number + 3)
    hello = wire.HostHello(wire.PROTOCOL, "1", "train", "1" * 16, f"node{number + 1}", 2 * HOSTS + 2, 0, ranks)
    peer = Peer(b"b%d" % number, hello, 0.0, 0)
    peer.begin(1, time.monotonic())
    return peer.name, peer


def test_hosts_that_come_together_are_settled_once() -> None:
    """Two hundred hosts that come, or fall silent, between two turns of the head make it look at all of them once."""
    head, peers, _ = _head()
    for number in range(HOSTS):
        name, peer = _come(number)
        peers[name] = peer
        head.changed(name)
    head.turn()
    assert head.looks == 1
    assert [each.state for each in head.states()] == ["linked"] * (HOSTS + 1)
    for name, peer in peers.items():
        peer.is_silent = True
        head.changed(name)
    head.turn()
    assert head.looks == 2
    assert [each.state for each in head.states()[1:]] == ["silent"] * HOSTS


def test_what_a_newcomer_says_is_not_lost_meanwhile() -> None:
    """What a host publishes right after it has come counts as of its ranks, before the next turn."""
    head, peers, here = _head()
    name, peer = _come(0)
    peers[name] = peer
    head.changed(name)
    said = wire.encode(wire.Beat(2, 1, "running", "data", 1, None, 1))
    head.arrived(name, PUBLICATION, [b"beat/00002", said])
    assert [each.payload for each in here.news if isinstance(each, Heard)] == [said]
    assert head.refused == 0
    assert {rank for each in head.states() for rank in each.ranks} == {0, 1, 2, 3}


class Told(NoJudge):
    """A judge that remembers what it was told of the hosts."""

    def __init__(self) -> None:
        self.states: list[dict[str, tuple[tuple[int, ...], str]]] = []

    def hosts(self, states: Sequence[wire.HostFrame]) -> None:
        """Remember it."""
        self.states.append({each.host: (each.ranks, each.state) for each in states})


def test_the_judge_at_the_head_is_told_the_hosts(runtime: Path) -> None:
    """It hears which ranks are on which host, again each second, and that a host is not linked any more."""
    judge = Told()
    with several(runtime, 2, 2) as (one, two), one.observed(lambda *_: judge):
        with two.observed():
            two.find(one)
            both = {"node1": ((0, 1), "linked"), "node2": ((2, 3), "linked")}
            until(lambda: both in judge.states, "the hosts to be told")
            first = len(judge.states)
            until(lambda: len(judge.states) >= first + 2, "them to be told again")
            assert judge.states[-1] == both
        until(lambda: judge.states[-1]["node2"][1] != "linked", "the end of the link to be told")
