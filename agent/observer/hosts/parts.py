"""The parts of a relay that it shares with the hosts, and what both sides of a link have in common."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
import zmq

from ddptop.agent import wire
from ddptop.agent.observer.hosts.common import CommonRecord
from ddptop.agent.observer.hosts.link.frames import MEMBERS, SUBSCRIBE, UNSUBSCRIBE
from ddptop.agent.observer.hosts.link.side import Link
from ddptop.agent.observer.relay.hanging import Hanging
from ddptop.agent.observer.relay.intake import Intake
from ddptop.agent.observer.service.commands import Commands
from ddptop.agent.observer.service.forwarding import Forwarding
from ddptop.agent.observer.service.service import Door
from ddptop.agent.run import records
from ddptop.agent.run.hosts import FarRanks, bare
from ddptop.agent.run.rundir import Member, Run, RunDir
from ddptop.agent.version import VERSION

_PIECE: Final = 256
"""Records of ranks in one message, of a few hundred bytes each."""
_MOST_SENT: Final = 4_096
"""Records of ranks that are sent to one peer in one turn."""


class Say(Protocol):
    """Publishes and records an event of this moment."""

    def __call__(self, text: str, level: str = "info", rank: int | None = None) -> None:
        """Tell it."""


@dataclass(frozen=True)
class Parts:
    """The parts of the relay."""

    context: zmq.Context[Any]
    directory: RunDir
    run: Run
    door: Door
    greet: Callable[[Set[bytes]], None]
    """Publishes soon to those who subscribe to these topics anew what is known by now."""
    commands: Commands
    forwarding: Forwarding
    intake: Intake
    hanging: Hanging
    common: CommonRecord
    send_events: Callable[[], None]
    """Publishes the events that were said on other threads."""
    say: Say
    wake: Callable[[], None]
    follow_elsewhere: Callable[[Member], None]
    """Takes in a rank on another host, or the process that has its place now."""
    lose_elsewhere: Callable[[int], None]
    """Does without a rank on another host whose process is gone."""
    know_hosts: Callable[[Sequence[wire.HostState]], None]
    """Tells the judge of the hosts, and which ranks each has."""
    judge_here: Callable[[bool], None]
    """Begins to judge the run on this host, or leaves that to the head."""


@dataclass
class Local:
    """The ranks on this host, as the run directory has them."""

    directory: RunDir
    run: Run
    members: dict[int, Member] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    """Those whose process is gone."""
    _read_at: tuple[int, int] = (0, 0)

    def read(self) -> bool:
        """Read the records of the ranks where they have changed; return whether they have."""
        at = (0, 0)
        with contextlib.suppress(OSError):
            found = os.stat(self.directory.path / "ranks")
            at = found.st_mtime_ns, found.st_ino
        if at == self._read_at:
            return False
        self._read_at = at
        before, self.members = self.members, self.directory.members()
        for rank, member in self.members.items():
            if rank in before and before[rank].process != member.process:
                self.gone.discard(rank)
        self.gone &= self.members.keys()
        return True

    @property
    def generation(self) -> int:
        """The generation of these ranks."""
        return max((member.generation for member in self.members.values()), default=0)

    @property
    def host(self) -> str:
        """The name of this host, as its ranks say it."""
        return next((member.host for member in self.members.values()), "") or socket.gethostname()

    def hello(self) -> wire.HostHello:
        """Return how this host introduces itself."""
        return wire.HostHello(
            wire.PROTOCOL, VERSION, self.run.run, self.run.run_id, self.host, self.run.world, self.generation,
            tuple(self.members), time.time_ns(), gone=tuple(sorted(self.gone)),
        )  # fmt: skip


class Subscriptions:
    """What is subscribed to at a peer."""

    def __init__(self, link: Link, peer: bytes) -> None:
        """Subscribe to nothing."""
        self._link = link
        self._peer = peer
        self._sent: set[bytes] = set()

    def want(self, topics: Iterable[bytes], again: Iterable[bytes] = ()) -> None:
        """Subscribe to these topics and no others, to some of them anew so that what is known comes at once."""
        wanted = set(topics)
        self._sent -= set(again)
        for topic in sorted(wanted - self._sent):
            if self._link.send(self._peer, SUBSCRIBE, topic):
                self._sent.add(topic)
        for topic in self._sent - wanted:
            if self._link.send(self._peer, UNSUBSCRIBE, topic):
                self._sent.discard(topic)


class Mirror:
    """The records of ranks that a peer has been sent."""

    def __init__(self, link: Link, peer: bytes) -> None:
        """It has none yet."""
        self._link = link
        self._peer = peer
        self._sent: dict[int, Member] = {}
        self.is_whole = False
        """Whether it has all that was to be sent."""

    def send(self, members: Mapping[int, Member]) -> None:
        """Send what has changed since, as far as there is room."""
        changed = [member for rank, member in members.items() if self._sent.get(rank) is not member]
        self.is_whole = False
        for piece in _pieces(changed[:_MOST_SENT]):
            plain = tuple(map(bare, piece))
            if not self._link.send(self._peer, MEMBERS, msgspec.json.encode(FarRanks(plain))):
                return
            self._sent.update((each.rank, each) for each in piece)
        self.is_whole = len(changed) <= _MOST_SENT


def _pieces(members: list[Member]) -> Iterator[list[Member]]:
    for first in range(0, len(members), _PIECE):
        yield members[first : first + _PIECE]


def read_members(payload: bytes, world: int) -> list[Member]:
    """Return the records in a message; raises `ValueError` where it is none of this run."""
    found = records.decode(payload, FarRanks).members
    if any(member.rank >= world or member.world != world for member in found):
        raise ValueError("records of another run")
    return [bare(member) for member in found]
