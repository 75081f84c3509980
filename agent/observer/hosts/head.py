"""The side of the head: the ranks of all other hosts come in by their observers, which are onlookers of it.

What a branch says is taken for its own ranks only, as far as it can be true.
"""

from __future__ import annotations

import time
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.observer.hosts import elsewhere
from ddptop.agent.observer.hosts.link.frames import ANSWER, COMMAND, MEMBERS, PUBLICATION, SUBSCRIBE, UNSUBSCRIBE
from ddptop.agent.observer.hosts.link.peer import Peer
from ddptop.agent.observer.hosts.link.side import Side
from ddptop.agent.observer.hosts.questions import GONE, LINKED, SILENT, Questions
from ddptop.agent.observer.hosts.sides import (
    Asked,
    Come,
    Framed,
    Heard,
    Left,
    Mirror,
    Missed,
    OneSide,
    Subscriptions,
    ThisHost,
    read_members,
)
from ddptop.agent.run.identity import Process
from ddptop.agent.run.records import Member
from ddptop.agent.wire import EACH_RECORD, HostFrame

_ALWAYS: Final = frozenset({wire.TOPIC_RANKS, wire.TOPIC_BUNDLE})
"""Of each branch, also while nobody looks on: the frames of its ranks once a second, and their messages for the judge.
"""
_OF_BRANCHES: Final = frozenset({wire.TOPIC_OUTLINE, wire.TOPIC_RECORD})
"""What each branch subscribes to, also while nobody looks on there."""
_OF_SETTLED: Final = frozenset((PUBLICATION, COMMAND, ANSWER))
"""What can be taken in only once it is known which ranks are where."""
GONE_S: Final = 10.0
"""Seconds after the end of its connection in which a host may come back before it counts as gone."""
_SETTLES_S: Final = 30.0
"""Seconds within which all hosts have seen a restart of the group."""


@dataclass
class Connected:
    """Another host of the run."""

    peer: Peer
    subscriptions: Subscriptions
    mirror: Mirror
    session: int = -1
    members: dict[int, Member] = field(default_factory=dict)
    ranks: frozenset[int] = frozenset()
    """Those of its ranks that are taken for its own."""
    state: str = ""
    refused: int = 0
    otherwise_since: float | None = None
    """When it was first seen that it counts the restarts of the group otherwise than this host."""
    told_otherwise: bool = False


class Head(OneSide):
    """All branches; for use from the relay's thread."""

    def __init__(self, here: ThisHost, link: Side, questions: Questions) -> None:
        """Know no branch yet, on a link that listens."""
        super().__init__(here, link, questions)
        self._world = here.run.world
        self._branches: dict[bytes, Connected] = {}
        self._followed: dict[int, tuple[int, Process]] = {}
        self._in_sight: Set[bytes] = frozenset()
        """Of a large group, the topics of single ranks that somebody looks at, or that the judge suspects."""
        self._known: dict[int, Member] = {}
        """The records of all ranks, as the branches were sent them last."""
        self._linked: dict[str, bytes] = {}
        """By host that is linked, its peer."""
        self._lost: set[int] = set()
        """Ranks on other hosts whose process is gone."""
        self._changes: dict[bytes, bool] = {}
        """Branches with a change that has no consequence yet, and whether they were away. A thousand hosts may come, or
        fall silent, in one moment, and to settle takes as long as there are ranks."""

    def arrived(self, peer: bytes, kind: bytes, frames: list[bytes]) -> None:
        """Take in a message of a branch."""
        branch = self._branches.get(peer)
        if branch is None:
            self.refused += 1
            return
        if peer in self._changes and kind in _OF_SETTLED:
            self._settle_changes()
        try:
            is_good = self._take(branch, kind, frames)
        except (ValueError, wire.Unreadable):
            is_good = False
        if not is_good:
            self._refuse(branch)

    def _take(self, branch: Connected, kind: bytes, frames: list[bytes]) -> bool:
        """Take in a message; return False where it cannot be true."""
        name = branch.peer.name
        if kind == PUBLICATION:
            return self._take_publication(branch, *frames)
        if kind == COMMAND:
            self._here.news.append(Asked(elsewhere.named(name, frames[0]), frames[1:], branch.peer.pings.offset_s))
        elif kind == ANSWER and len(frames) == 2:
            return self.questions.is_own(frames[0]) and self.questions.answered(name, frames[1])
        elif kind == ANSWER:
            self._elsewhere.answered(name, frames)
        elif kind == SUBSCRIBE:
            return self._subscribe(name, frames[0])
        elif kind == UNSUBSCRIBE:
            self._elsewhere.unsubscribe(name, frames[0])
        elif kind == MEMBERS:
            return self._take_members(branch, frames[0])
        return True

    def _refuse(self, branch: Connected) -> None:
        self.refused += 1
        branch.refused += 1
        if branch.refused == 1:
            self._here.say(f"{branch.peer.host} sends what cannot be true: it is left out", "warning")

    def changed(self, name: bytes) -> None:
        """Take note that a branch came, fell silent, is heard again, has other ranks, or is gone."""
        peer, branch = self._link.peers.get(name), self._branches.get(name)
        if peer is None:
            if branch is not None:
                self._forget(branch)
                del self._branches[name]
        elif branch is None:
            branch = self._branches[name] = Connected(peer, Subscriptions(self._link, name), Mirror(self._link, name))
        elif branch.session != peer.session:
            # It may be another process, and knows nothing.
            self._forget(branch)
            branch.subscriptions, branch.mirror = Subscriptions(self._link, name), Mirror(self._link, name)
        elif not peer.is_connected:
            self._forget(branch)
        was_away = self._changes.get(name, False)
        if peer is not None and branch is not None:
            was_away = was_away or not peer.is_linked or branch.state != LINKED or branch.session != peer.session
            branch.session = peer.session
        self._changes[name] = was_away

    def _settle_changes(self) -> None:
        """Draw the consequences of what has changed at branches."""
        changes, self._changes = self._changes, {}
        self._settle()
        for name, was_away in changes.items():
            branch = self._branches.get(name)
            if branch is None or branch.state != LINKED:
                continue
            self._subscribe_at(branch, again=was_away)
            if was_away:
                # What was published meanwhile did not arrive.
                self._here.news += map(Missed, branch.ranks)

    def _forget(self, branch: Connected) -> None:
        """Forget what a branch has asked for."""
        self.questions.lose(branch.peer.name)
        self._elsewhere.leave(branch.peer.name)

    def _settle(self) -> None:
        """Find out which ranks are on which host, and take in those that are new."""
        generation, here = self._here.generation, self._here.members
        owners: dict[int, Connected] = {}
        order = sorted(self._branches.values(), key=lambda each: (not each.peer.is_linked, -each.peer.hello.generation))
        for branch in order:
            claimed = {rank for rank in branch.peer.ranks if rank < self._world and rank not in here}
            # `set - dict.keys()` goes through all the keys.
            branch.ranks = frozenset([rank for rank in claimed if rank not in owners])
            owners |= dict.fromkeys(branch.ranks, branch)
        self._elsewhere.owners = {rank: branch.peer.name for rank, branch in owners.items()}
        for rank, branch in owners.items():
            member = branch.members.get(rank)
            # Of the next generation once this host has seen it itself: one host may claim anything.
            if member is None or member.generation != generation:
                continue
            if self._followed.get(rank) != (generation, member.process):
                self._followed[rank] = generation, member.process
                self._lost.discard(rank)
                self._here.news.append(Come(member))
        for branch in self._branches.values():
            for rank in branch.ranks.intersection(branch.peer.hello.gone) - self._lost:
                if self._followed.get(rank, (-1,))[0] == generation == branch.peer.hello.generation:
                    self._lost.add(rank)
                    self._here.news.append(Left(rank))
        self._note_states()

    def _note_states(self) -> None:
        unheard: set[int] = set()
        for branch in self._branches.values():
            peer = branch.peer
            branch.state = LINKED if peer.is_linked else SILENT if peer.is_connected else self._state_of_lost(branch)
            if branch.state != LINKED:
                unheard |= branch.ranks
        self._linked = {each.peer.host: name for name, each in self._branches.items() if each.state == LINKED}
        before, self.unheard = self.unheard, frozenset(unheard - self._lost)
        self._elsewhere.absent, self._elsewhere.unheard = self.unheard | self._lost, frozenset(unheard)
        if newly := self.unheard - before:
            self._elsewhere.lose(newly)

    def _state_of_lost(self, branch: Connected) -> str:
        """Return the state of a host whose connection has ended: it may come back within seconds."""
        is_over = bool(branch.ranks) and branch.ranks <= self._lost
        return GONE if is_over or time.monotonic() - branch.peer.since > GONE_S else SILENT

    def _topics(self, branch: Connected) -> set[bytes]:
        topics = set(_ALWAYS)
        if self._here.common.is_ready:
            topics.add(wire.TOPIC_RECORD)
        if self._world > EACH_RECORD:
            topics |= {topic for topic in self._in_sight if int(topic[-5:]) in branch.ranks}
        elif self._here.subscribed or self._elsewhere.topics - _OF_BRANCHES:
            topics.add(wire.TOPIC_RANK + b"/")
        return topics

    def look_at(self, topics: Set[bytes]) -> None:
        """Have these topics of single ranks of a large group at once, as far as they are on other hosts."""
        self._in_sight = topics

    def _subscribe_at(self, branch: Connected, *, again: bool = False) -> None:
        branch.subscriptions.want(self._topics(branch), again=(wire.TOPIC_RANKS, wire.TOPIC_RECORD) if again else ())

    def turn(self) -> None:
        """Do what was left for want of room, and what was asked for by the main thread."""
        if self._changes:
            self._settle_changes()
        self.questions.turn(self._link, self._linked)

    def each_second(self) -> None:
        """Mirror the records of ranks, and follow what has changed here."""
        self._settle()
        known = {**self.members(), **self._here.members}
        has_changed, self._known = known != self._known, known
        for branch in self._branches.values():
            if branch.state == LINKED:
                self._note_count(branch)
                self._subscribe_at(branch)
                # To compare all records for each of many branches takes a part of a core.
                if has_changed or not branch.mirror.is_whole:
                    branch.mirror.send({rank: each for rank, each in known.items() if rank not in branch.ranks})

    def _note_count(self, branch: Connected) -> None:
        """Tell once that a host counts the starts of the group otherwise: what its ranks say cannot be told apart then.

        It has joined an elastic training after its start, or was made anew, and knows nothing of earlier starts.
        """
        own, other, now = self._here.generation, branch.peer.hello.generation, time.monotonic()
        if own == other or not branch.ranks:
            branch.otherwise_since = None
        elif branch.otherwise_since is None:
            branch.otherwise_since = now
        elif now - branch.otherwise_since > _SETTLES_S and not branch.told_otherwise:
            branch.told_otherwise = True
            self._here.say(
                f"{branch.peer.host} counts {other} restarts of the group and this host {own}, as where one of them "
                "has joined the training later: the ranks there are not shown here",
                "warning",
            )

    def members(self) -> dict[int, Member]:
        """Return the records of the ranks on other hosts."""
        generation = self._here.generation
        return {
            rank: member
            for branch in self._branches.values()
            for rank, member in branch.members.items()
            if rank in branch.ranks and member.generation == generation
        }

    def _take_publication(self, branch: Connected, topic: bytes, payload: bytes) -> bool:
        if topic == wire.TOPIC_RECORD:
            # Its verdicts are those of a host that was alone.
            return False not in [self._take_event(branch, event) for event in wire.read_recorded(payload).events]
        if topic == wire.TOPIC_BUNDLE:
            parts = wire.read_bundle(payload).messages
            return False not in [self._take_telemetry(branch, bytes(part)) for part in parts]
        if topic.startswith(wire.TOPIC_RANK):
            return self._take_frames(branch, wire.read_frame(payload))
        return self._take_telemetry(branch, payload)

    def _take_frames(self, branch: Connected, message: wire.RunFrame | wire.RankFrame | wire.Rows) -> bool:
        if isinstance(message, wire.RunFrame):
            return False
        frames = message.ranks if isinstance(message, wire.Rows) else (message,)
        own = [frame for frame in frames if frame.rank in branch.ranks]
        self._here.news += map(Framed, own)
        return len(own) == len(frames)

    def _take_event(self, branch: Connected, event: wire.Event) -> bool:
        if event.rank is not None and event.rank not in branch.ranks:
            return False
        named = _named(event, branch.peer.host)
        self._here.news.append(Heard(named, wire.encode(named)))
        return True

    def _take_telemetry(self, branch: Connected, payload: bytes) -> bool:
        message = wire.read_telemetry(payload)
        # By comparison: `isinstance` asks the metaclass of these classes, which takes ten times as long.
        if not (
            type(message) is wire.Beat
            or type(message) is wire.Summary
            or type(message) is wire.Steps
            or type(message) is wire.Hello
            or type(message) is wire.Checksums
            or type(message) is wire.Sampled
        ):
            return False
        if message.rank not in branch.ranks:
            return False
        self._here.news.append(Heard(message, payload))
        return True

    def _take_members(self, branch: Connected, payload: bytes) -> bool:
        claimed = set(branch.peer.ranks)
        found = read_members(payload, self._world)
        branch.members.update((member.rank, member) for member in found if member.rank in claimed)
        self._changes.setdefault(branch.peer.name, False)
        return all(member.rank in claimed for member in found)

    def states(self) -> tuple[HostFrame, ...]:
        """Return what is known of all hosts, this one first."""
        here = msgspec.structs.replace(self._here.state(LINKED), offset_ms=0.0, offset_error_ms=0.0, rtt_ms=0.0)
        return here, *(self._state_of(branch) for branch in self._branches.values() if branch.ranks)

    def _state_of(self, branch: Connected) -> HostFrame:
        peer = branch.peer
        return HostFrame(
            peer.host, branch.state, tuple(sorted(branch.ranks)), peer.heard_at_ns / 1e9, _ms(peer.pings.offset_s),
            _ms(peer.pings.offset_error_s), _ms(peer.pings.rtt_s), peer.hello.agent_version,
            gone=tuple(sorted(branch.ranks & self._lost)),
        )  # fmt: skip


def _named(event: wire.Event, host: str) -> wire.Event:
    """Return an event with the name of its host, where it is of no rank."""
    if event.rank is not None or event.action or host in event.text:
        return event
    return msgspec.structs.replace(event, text=f"{host}: {event.text}")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
