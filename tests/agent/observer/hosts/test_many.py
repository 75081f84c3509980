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

HOSTS = 200


class CountedHead(Head):
    """A head that counts how often it looks at all hosts."""

    looks = 0

    def _settle(self) -> None:
        self.looks += 1
        super()._settle()


def _head(folder: Path) -> tuple[CountedHead, dict[bytes, Peer], list[bytes]]:
    """Return a head of one host, the peers of its link, and whose messages were taken in."""
    taken: list[bytes] = []
    peers: dict[bytes, Peer] = {}
    intake = SimpleNamespace(
        generation=0,
        refused=0,
        look_for_gap=lambda rank: None,
        take_from_elsewhere=lambda message, payload, _: taken.append(payload),
    )
    parts: Any = SimpleNamespace(
        run=SimpleNamespace(world=2 * HOSTS + 2, node=0), directory=SimpleNamespace(path=folder), intake=intake,
        hanging=SimpleNamespace(unheard=frozenset()), door=SimpleNamespace(is_watched=False), wake=lambda: None,
        send_events=lambda: None, common=SimpleNamespace(is_ready=False),
        forwarding=SimpleNamespace(lose_elsewhere=lambda rank: None),
    )  # fmt: skip
    local: Any = SimpleNamespace(members={0: None, 1: None}, gone=set(), host="node0")
    link: Any = SimpleNamespace(peers=peers, send=lambda *message: True)
    return CountedHead(parts, local, Elsewhere(), link), peers, taken


def _come(number: int) -> tuple[bytes, Peer]:
    ranks = (2 * number + 2, 2 * number + 3)
    hello = wire.HostHello(wire.PROTOCOL, "1", "train", "1" * 16, f"node{number + 1}", 2 * HOSTS + 2, 0, ranks)
    peer = Peer(b"b%d" % number, hello)
    peer.begin(1, time.monotonic())
    return peer.name, peer


def test_hosts_that_come_together_are_settled_once(tmp_path: Path) -> None:
    """Two hundred hosts that come, or fall silent, between two turns of the head make it look at all of them once."""
    head, peers, _ = _head(tmp_path)
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


def test_what_a_newcomer_says_is_not_lost_meanwhile(tmp_path: Path) -> None:
    """What a host publishes right after it has come counts as of its ranks, before the next turn."""
    head, peers, taken = _head(tmp_path)
    name, peer = _come(0)
    peers[name] = peer
    head.changed(name)
    said = wire.encode(wire.Beat(2, 1, "running", "data", 1, None, 1))
    head.arrived(name, PUBLICATION, [b"beat/00002", said])
    assert taken == [said]
    assert head.refused == 0
    assert {rank for each in head.states() for rank in each.ranks} == {0, 1, 2, 3}


class Told(NoJudge):
    """A judge that remembers what it was told of the hosts."""

    def __init__(self) -> None:
        self.states: list[dict[str, tuple[tuple[int, ...], str]]] = []

    def hosts(self, states: Sequence[wire.HostState]) -> None:
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
