"""The relays of a run on several hosts in one process: each with a run directory and fake ranks of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import zmq

from ddptop.agent import wire
from ddptop.agent.observer.hosts.link import frames, keys
from ddptop.agent.observer.hosts.link.addresses import Place
from ddptop.agent.observer.hosts.link.branch import Branch
from ddptop.agent.observer.hosts.link.head import Head
from ddptop.agent.observer.hosts.link.side import Arrived, Side
from ddptop.agent.observer.judge.judge import Judge
from ddptop.agent.observer.relay.relay import Relay
from ddptop.agent.observer.relay.verdicts import MakeJudge, judge_of
from ddptop.agent.run import hosts, rundir
from ddptop.agent.run.base import BASE_VARIABLE
from ddptop.agent.run.hosts import FarRanks, Listen, Rendezvous
from ddptop.agent.run.rundir import Member, Process, Run, RunDir
from support.fakes.links import Cable
from support.fakes.ranks import Rank
from support.fakes.relay import relayed
from support.harness import until


@dataclass
class Host:
    """One host: a run directory, its fake ranks, and its observer's relay while it lives."""

    name: str
    directory: RunDir
    ranks: list[Rank]

    @contextlib.contextmanager
    def observed(self, judge: MakeJudge = judge_of, *, finish: bool = False) -> Iterator[Relay]:
        """Have an observer's relay here."""
        with relayed(self.directory, judge=judge, finish=finish) as relay:
            yield relay

    @property
    def listen(self) -> Listen:
        """Where the head listens, once it does."""
        until(lambda: hosts.read_listen(self.directory.path, hosts.LISTEN), f"{self.name} to listen")
        found = hosts.read_listen(self.directory.path, hosts.LISTEN)
        assert found is not None
        return found

    def learn(self, listen: Listen) -> None:
        """Be told where the head is, as the agent of a rank here finds it out."""
        hosts.write_listen(self.directory.path, hosts.HEAD, listen)

    def find(self, other: Host) -> None:
        """Be told where another host listens."""
        self.learn(other.listen)

    @contextlib.contextmanager
    def cable(self, other: Host) -> Iterator[Cable]:
        """Be told that another host is at the end of a cable, which can be cut."""
        listen = other.listen
        made = Cable(listen.addresses[0])
        self.learn(msgspec.structs.replace(listen, addresses=(made.endpoint,)))
        try:
            yield made
        finally:
            made.close()


@contextlib.contextmanager
def several(base: Path, *ranks: int, world: int | None = None, **fields: Any) -> Iterator[list[Host]]:
    """Make hosts with so many ranks each, numbered on from host to host, of one run."""
    given: dict[str, Any] = {
        "run": "train", "run_id": secrets.token_hex(8), "program": "train.py", "arguments": (), "backend": "gloo",
        "device": "cpu", "created_at_ns": time.time_ns(), "launched": False, "world": world or sum(ranks),
        "nodes": len(ranks),
    }  # fmt: skip
    found: list[Host] = []
    first = 0
    with zmq.Context() as context, patch.dict(os.environ):
        try:
            for number, count in enumerate(ranks, 1):
                # A short one of its own: other tests may use the base, and paths of sockets are short.
                folder = Path(tempfile.mkdtemp(prefix=f"{number}-", dir=base))
                os.environ[BASE_VARIABLE] = str(folder)
                directory = rundir.create(Run(**given | {"local_world": count, "node": number - 1} | fields))
                hosts.write_rendezvous(directory.path, Rendezvous("127.0.0.1", "127.0.0.1"))
                name = f"node{number}"
                here = [Rank(context, directory, rank, host=name) for rank in range(first, first + count)]
                found.append(Host(name, directory, here))
                first += count
            yield found
        finally:
            for host in found:
                for rank in host.ranks:
                    rank.close()


class NoJudge(Judge):
    """A judge that finds nothing."""

    def __init__(self) -> None:
        super().__init__(1)

    def verdicts(self, now_ns: int) -> tuple[wire.Verdict, ...]:
        """Return none."""
        return ()


Published = wire.Telemetry | wire.Bundle | wire.Rows | wire.RankFrame | wire.RunFrame | bytes


class FakePeer:
    """The other side of a link of a real observer: it says whatever the test wants, and notes what it is sent."""

    def __init__(self, link: Side, run: Run, host: str) -> None:
        self.wanted: set[bytes] = set()
        """What the observer subscribes to."""
        self.published: list[tuple[bytes, bytes]] = []
        """Topics and payloads that it has published."""
        self._link, self._run, self._host = link, run, host

    def until(self, condition: Callable[[], object], what: str = "the other observer") -> None:
        """Turn the link until something is so."""

        def turned() -> object:
            for each in self._link.turn():
                match each:
                    case Arrived(_, frames.SUBSCRIBE, [topic]):
                        self.wanted.add(topic)
                    case Arrived(_, frames.UNSUBSCRIBE, [topic]):
                        self.wanted.discard(topic)
                    case Arrived(_, frames.PUBLICATION, [topic, payload]):
                        self.published.append((topic, payload))
            return condition()

        until(turned, what)

    def send(self, kind: bytes, *content: bytes) -> None:
        """Send a message, when there is room."""
        self.until(lambda: any(self._link.send(name, kind, *content) for name in self._link.peers))

    def publish(self, topic: bytes, message: Published) -> None:
        """Publish something."""
        self.send(frames.PUBLICATION, topic, message if isinstance(message, bytes) else wire.encode(message))

    def tell_of(self, *ranks: int) -> None:
        """Tell of the processes of ranks, which have 100 and their rank for a number."""
        members = [
            Member(rank, rank, self._run.world, Process(100 + rank, 1.0), self._host, 0, "", "", None) for rank in ranks
        ]
        self.send(frames.MEMBERS, msgspec.json.encode(FarRanks(tuple(members))))


@contextlib.contextmanager
def branch_of(listen: Listen, run: Run, ranks: tuple[int, ...], host: str) -> Iterator[FakePeer]:
    """Be a branch that has the key of the run."""
    with zmq.Context() as context:
        link = Branch(context, listen, _hello(run, ranks, host))
        made = FakePeer(link, run, host)
        try:
            made.until(lambda: link.is_linked)
            yield made
        finally:
            link.close()


@contextlib.contextmanager
def head_of(branch: Host, ranks: tuple[int, ...], host: str) -> Iterator[FakePeer]:
    """Be the head for an observer on another host."""
    run = branch.directory.read()
    link = Head(keys.generate(), Place("127.0.0.1"), _hello(run, ranks, host))
    made = FakePeer(link, run, host)
    try:
        branch.learn(link.listen)
        made.until(lambda: any(peer.is_linked for peer in link.peers.values()))
        yield made
    finally:
        link.close()


def _hello(run: Run, ranks: tuple[int, ...], host: str) -> wire.HostHello:
    return wire.HostHello(wire.PROTOCOL, "1", run.run, run.run_id, host, run.world, ranks=ranks, at_ns=time.time_ns())
