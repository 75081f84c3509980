"""What both sides of a link have in common: what they tell the relay, and what each has of the other's ranks."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from ddptop.agent import wire
from ddptop.agent.observer.hosts.common import CommonRecord
from ddptop.agent.observer.hosts.elsewhere import Elsewhere
from ddptop.agent.observer.hosts.link.frames import MEMBERS, SUBSCRIBE, UNSUBSCRIBE
from ddptop.agent.observer.hosts.link.side import Said, Side
from ddptop.agent.observer.hosts.questions import Questions
from ddptop.agent.run import records
from ddptop.agent.run.hosts import FarRanks, bare
from ddptop.agent.run.rundir import Member, Run, RunDir
from ddptop.agent.startup.version import VERSION
from ddptop.agent.text import ranks_in_spans
from ddptop.agent.wire import HostFrame

_PIECE: Final = 256
"""Records of ranks in one message, of a few hundred bytes each."""
_MOST_SENT: Final = 4_096
"""Records of ranks that are sent to one peer in one turn."""


class Heard(NamedTuple):
    """A message of a rank on another host, and its bytes."""

    message: wire.Telemetry
    payload: bytes


class Framed(NamedTuple):
    """A rank on another host as the observer there shows it."""

    frame: wire.RankFrame


class Come(NamedTuple):
    """A rank on another host was found, or the process that has its place now."""

    member: Member


class Left(NamedTuple):
    """The process of a rank on another host is gone."""

    rank: int


class Missed(NamedTuple):
    """What a rank on another host has published meanwhile was not heard."""

    rank: int


class Asked(NamedTuple):
    """A command of a requester at another host, whose clock is so many seconds ahead; None: not known."""

    requester: bytes
    frames: list[bytes]
    ahead_s: float | None


class Answered(NamedTuple):
    """An answer for a requester here."""

    requester: bytes
    frames: tuple[bytes, ...]


class Shown(NamedTuple):
    """What the head publishes, for onlookers here."""

    topic: bytes
    payload: bytes


class Known(NamedTuple):
    """What is known of the hosts by now."""

    hosts: Sequence[HostFrame]


class Subscribed(NamedTuple):
    """Somebody subscribes anew to these topics, None: to all, and is to be sent what is known by now."""

    topics: Set[bytes] | None


News = Heard | Framed | Come | Left | Missed | Asked | Answered | Shown | Known | Subscribed | Said
"""What has come from other hosts, in order."""


class Subscriptions:
    """What is subscribed to at a peer."""

    def __init__(self, link: Side, peer: bytes) -> None:
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

    def __init__(self, link: Side, peer: bytes) -> None:
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


@dataclass
class ThisHost:
    """The host of this observer, as relay and run directory know it, and what there is to be told to the relay."""

    directory: RunDir
    run: Run
    elsewhere: Elsewhere
    common: CommonRecord
    news: list[News] = field(default_factory=list)
    members: dict[int, Member] = field(default_factory=dict)
    """The records of the ranks here."""
    gone: set[int] = field(default_factory=set)
    """Those whose process is gone."""
    generation: int = 0
    """The newest generation of which the relay has found a rank."""
    subscribed: Set[bytes] = frozenset()
    """The topics to which onlookers here subscribe."""
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

    def say(self, text: str, level: str = "info") -> None:
        """Have an event published and recorded."""
        self.news.append(Said(text, level))

    @property
    def host(self) -> str:
        """The name of this host, as its ranks say it."""
        return next((member.host for member in self.members.values()), "") or socket.gethostname()

    @property
    def alone(self) -> str:
        """The view that this host has without a link."""
        return f"this is the view of {self.host} alone, {ranks_in_spans(self.members)}"

    def state(self, state: str) -> HostFrame:
        """Return what is known of this host."""
        return HostFrame(
            self.host, state, tuple(self.members), time.time(), agent_version=VERSION, node=self.run.node,
            gone=tuple(sorted(self.gone)),
        )  # fmt: skip

    def hello(self) -> wire.HostHello:
        """Return how this host introduces itself."""
        generation = max((member.generation for member in self.members.values()), default=0)
        return wire.HostHello(
            wire.PROTOCOL, VERSION, self.run.run, self.run.run_id, self.host, self.run.world, generation,
            tuple(self.members), time.time_ns(), gone=tuple(sorted(self.gone)),
        )  # fmt: skip


class OneSide:
    """One side of a link, for the ranks and onlookers of this host."""

    def __init__(self, here: ThisHost, link: Side, questions: Questions) -> None:
        """Know no other host yet."""
        self.questions = questions
        self.refused = 0
        """Messages of others that could not be read, or cannot be true."""
        self.unheard: frozenset[int] = frozenset()
        """Ranks of hosts that are not heard."""
        self._here = here
        self._link = link
        self._elsewhere = here.elsewhere
        self._elsewhere.link = link

    def _subscribe(self, peer: bytes, topic: bytes) -> bool:
        """Take in a subscription of another observer; return False where it may not have it."""
        if not self._elsewhere.subscribe(peer, topic):
            return False
        if topic == wire.TOPIC_RECORD:
            for payload in self._here.common.all():
                self._elsewhere.publish(peer, topic, payload)
        else:
            self._here.news.append(Subscribed({topic}))
        return True
