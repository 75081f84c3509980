"""The side of the head: the ranks of all other hosts come in by their observers, and its door is theirs, too.

What a branch says is taken for its own ranks only, as far as it can be true, and no faster than ranks speak.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ddptop.agent import wire
from ddptop.agent.observer.orders.far import GONE, LINKED, SILENT
from ddptop.agent.observer.orders.mirror import Sent
from ddptop.agent.observer.relay.hosts import askers
from ddptop.agent.observer.relay.hosts.asking import Asking
from ddptop.agent.observer.relay.hosts.beyond import Beyond
from ddptop.agent.observer.relay.hosts.links import (
    ANSWER,
    COMMAND,
    DECISION,
    HELLO,
    MEMBERS,
    PUBLICATION,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Link,
    Peer,
)
from ddptop.agent.observer.relay.hosts.parts import Local, Mirror, Parts, Subscriptions, read_members
from ddptop.agent.observer.relay.hosts.windows import WATCHED
from ddptop.agent.run.decisions import Decisions
from ddptop.agent.run.identity import Process
from ddptop.agent.run.records import Member
from ddptop.agent.version import VERSION
from ddptop.agent.wire import EACH_RECORD, HostState

_SMALL: Final = (
    wire.TOPIC_RANKS, wire.TOPIC_HELLO, wire.TOPIC_BEAT, wire.TOPIC_STEPS, wire.TOPIC_SUMMARY, wire.TOPIC_EVENT,
    wire.TOPIC_CHECKSUMS,
)  # fmt: skip
_LARGE: Final = (wire.TOPIC_RANKS, wire.TOPIC_EVENT, wire.TOPIC_CHECKSUMS)
"""In a large group the newest of all ranks of a host comes together, once a second."""
HEARD_S: Final = 2.0
"""A branch that was heard within so many seconds keeps its ranks, whoever else claims them."""
_RATE: Final = 50
"""Messages of each rank in a second, which is more than it publishes."""
_RATE_BYTES: Final = 1 << 20
"""The same of their bytes."""
_COMMANDS: Final = 2_000
"""Commands of a branch in a second: to each of a thousand ranks two."""
_BURST_S: Final = 10.0
"""So much may come at once, after so many seconds without."""
_FORGET_S: Final = 3600.0
"""Seconds after which a host that is gone is not told any more, where other hosts have its ranks."""


@dataclass
class _Allowance:
    """What a branch may send: messages, bytes or commands, by the second."""

    rate: float
    left: float = -1.0
    at: float = 0.0

    def take(self, amount: float, now: float) -> bool:
        if self.left < 0:
            self.left = self.rate * _BURST_S
        else:
            self.left = min(self.rate * _BURST_S, self.left + (now - self.at) * self.rate)
        self.at = now
        if amount > self.left:
            return False
        self.left -= amount
        return True


@dataclass
class _Branch:
    """Another host of the run."""

    hello: wire.HostHello
    subscriptions: Subscriptions
    mirror: Mirror
    messages: _Allowance
    bytes: _Allowance
    commands: _Allowance
    members: dict[int, Member] = field(default_factory=dict)
    ranks: frozenset[int] = frozenset()
    """Those of its ranks that are taken for its own."""
    summaries: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By rank, generation and number of its newest summary."""
    gone_at: float | None = None
    """When its connection ended."""
    state: str = LINKED
    last: HostState | None = None
    refused: int = 0


class Head:
    """All branches; for use from the relay's thread."""

    role: Final = "head"

    def __init__(
        self, parts: Parts, local: Local, beyond: Beyond, link: Link, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Know no branch yet, on a link that listens."""
        self.refused = 0
        """Messages of branches that cannot be true, or are too many."""
        self._parts = parts
        self._local = local
        self._beyond = beyond
        self._link = link
        self._clock = clock
        self._world = parts.run.world
        self._branches: dict[bytes, _Branch] = {}
        self._followed: dict[int, tuple[int, Process]] = {}
        self._lost: set[int] = set()
        """Ranks on other hosts whose process is gone."""
        self._decisions = Sent(
            Decisions(parts.directory.path),
            lambda peer, serial, content: link.send(peer, DECISION, b"%d" % serial, content),
        )
        self.asking = Asking(parts.wake, self._peer_of, link.send)
        beyond.link, beyond.before = link, self._decisions.turn
        self._each: Final = {
            PUBLICATION: self._take_publication,
            COMMAND: self._take_command,
            ANSWER: self._take_answer,
            SUBSCRIBE: self._subscribe,
            UNSUBSCRIBE: self._unsubscribe,
            MEMBERS: self._take_members,
            DECISION: self._take_decision,
        }

    @property
    def judges(self) -> bool:
        """The head judges."""
        return True

    def arrived(self, peer: bytes, kind: bytes, frames: list[bytes]) -> None:
        """Take in a message of a branch."""
        if kind == HELLO:
            self._meet(peer, frames)
            return
        branch, take = self._branches.get(peer), self._each.get(kind)
        if branch is None or take is None:
            self.refused += 1
            return
        try:
            take(peer, branch, frames)
        except (ValueError, wire.Unreadable):
            self._refuse(branch)

    def _refuse(self, branch: _Branch) -> None:
        self.refused += 1
        branch.refused += 1
        if branch.refused == 1:
            self._parts.say(f"{branch.hello.host} sends what cannot be true, or too much: it is left out", "warning")

    def _meet(self, peer: bytes, frames: list[bytes]) -> None:
        try:
            (payload,) = frames
            hello = wire.read_host_hello(payload)
        except (ValueError, wire.Unreadable):
            self.refused += 1
            return
        branch = self._branches.get(peer)
        if branch is None and len(self._branches) >= wire.MOST_HOSTS:
            self._forget_oldest()
        if branch is None and len(self._branches) >= wire.MOST_HOSTS:
            self.refused += 1
            return
        many = max(1, min(len(hello.ranks), self._world))
        if branch is None:
            self._branches[peer] = branch = _Branch(
                hello,
                Subscriptions(self._link, peer),
                Mirror(self._link, peer),
                _Allowance(200 + _RATE * many),
                _Allowance((8 << 20) + _RATE_BYTES * many),
                _Allowance(_COMMANDS),
            )
            self._decisions.meet(peer)
        elif branch.gone_at is not None or branch.hello.at_ns == 0:
            self._renew(peer, branch)
        branch.hello, branch.gone_at = hello, None
        branch.messages.rate, branch.bytes.rate = 200 + _RATE * many, (8 << 20) + _RATE_BYTES * many
        self._settle()
        if len(branch.ranks) < len(set(hello.ranks)) and hello.generation <= self._parts.intake.generation:
            self._refuse(branch)
        self._subscribe_at(branch)

    def _renew(self, peer: bytes, branch: _Branch) -> None:
        """Begin anew with a branch that was away: it may be another process, which knows nothing."""
        branch.subscriptions, branch.mirror = Subscriptions(self._link, peer), Mirror(self._link, peer)
        self._parts.door.windows.forget(peer)
        self._decisions.meet(peer)

    def changed(self, peer: bytes) -> None:
        """Take note that a branch fell silent, is heard again, or is gone."""
        branch = self._branches.get(peer)
        if branch is None:
            return
        if peer not in self._link.peers:
            if branch.gone_at is None:
                branch.gone_at = self._clock()
                self.asking.lose(peer)
                self._decisions.forget(peer)
                self._parts.door.windows.forget(peer)
        before = branch.state
        self._settle()
        if before != LINKED and branch.state == LINKED:
            # What was published meanwhile did not arrive.
            self._renew_subscriptions(branch)
            for rank in branch.ranks:
                self._parts.intake.look_for_gap(rank)

    def _renew_subscriptions(self, branch: _Branch) -> None:
        branch.subscriptions.want(self._topics(branch), again=(wire.TOPIC_RANKS,))

    def _forget_oldest(self) -> None:
        gone = [(each.gone_at, peer) for peer, each in self._branches.items() if each.gone_at is not None]
        if gone:
            del self._branches[min(gone)[1]]

    def _settle(self) -> None:
        """Find out which ranks are on which host, and take in those that are new."""
        now, generation = self._clock(), self._parts.intake.generation
        here = self._local.members
        owners: dict[int, bytes] = {}
        order = sorted(self._branches.items(), key=lambda each: (self._is_away(each[0], now), -each[1].hello.generation))
        for peer, branch in order:
            claimed = {rank for rank in branch.hello.ranks if rank < self._world and rank not in here}
            branch.ranks = frozenset(claimed - owners.keys())
            owners |= dict.fromkeys(branch.ranks, peer)
        self._beyond.owners = owners
        for rank, peer in owners.items():
            member = self._branches[peer].members.get(rank)
            # Of the next generation once this host has seen it itself: one host may claim anything.
            if member is not None and member.generation == generation:
                if self._followed.get(rank) != (generation, member.process):
                    self._followed[rank] = generation, member.process
                    self._lost.discard(rank)
                    self._parts.follow_afar(member)
        for branch in self._branches.values():
            for rank in branch.ranks.intersection(branch.hello.gone) - self._lost:
                if self._followed.get(rank, (-1,))[0] == generation == branch.hello.generation:
                    self._lost.add(rank)
                    self._parts.lose_afar(rank)
        self._note_states()

    def _is_away(self, peer: bytes, now: float) -> bool:
        found = self._link.peers.get(peer)
        return found is None or found.silent or now - found.heard_at > HEARD_S

    def _note_states(self) -> None:
        unheard: set[int] = set()
        for peer, branch in self._branches.items():
            found = self._link.peers.get(peer)
            branch.state = GONE if found is None else SILENT if found.silent else LINKED
            if branch.state != LINKED:
                unheard |= branch.ranks
        unheard -= self._lost
        newly = unheard - set(self._parts.hanging.unheard)
        self._parts.hanging.unheard = frozenset(unheard)
        self._beyond.absent = frozenset(unheard | self._lost)
        if newly:
            self._beyond.lose(newly)
            for rank in newly:
                self._parts.forwarding.lose_afar(rank)

    def lose(self, rank: int) -> None:
        """Take note that a rank on this host is gone."""

    def _topics(self, branch: _Branch) -> set[bytes]:
        topics = set(_SMALL if self._world <= EACH_RECORD else _LARGE)
        if self._parts.door.is_watched:
            topics.add(WATCHED)
        if self._world > EACH_RECORD:
            topics |= {wire.topic_of(wire.TOPIC_STEPS, rank) for rank in self._in_sight & branch.ranks}
        return topics

    _in_sight: frozenset[int] = frozenset()

    def look_at(self, ranks: frozenset[int]) -> None:
        """Have the records of these ranks of a large group at once, as far as they are on other hosts."""
        self._in_sight = ranks

    def _subscribe_at(self, branch: _Branch) -> None:
        branch.subscriptions.want(self._topics(branch))

    def turn(self) -> None:
        """Do what was left for want of room, and what was asked for by the main thread."""
        self._decisions.turn()
        self.asking.turn()

    def each_second(self) -> None:
        """Mirror the records of ranks, and follow what has changed here."""
        self._settle()
        known = {**self.members(), **self._local.members}
        for branch in self._branches.values():
            if branch.state == LINKED:
                self._subscribe_at(branch)
                branch.mirror.send({rank: each for rank, each in known.items() if rank not in branch.ranks})
        for peer, branch in list(self._branches.items()):
            if branch.gone_at is not None and not branch.ranks and self._clock() - branch.gone_at > HEARD_S:
                del self._branches[peer]

    def members(self) -> dict[int, Member]:
        """Return the records of the ranks on other hosts."""
        generation = self._parts.intake.generation
        return {
            rank: member
            for branch in self._branches.values()
            for rank, member in branch.members.items()
            if rank in branch.ranks and member.generation == generation
        }

    def _take_publication(self, peer: bytes, branch: _Branch, frames: list[bytes]) -> None:
        topic, payload = frames
        now = self._clock()
        if not (branch.messages.take(1, now) and branch.bytes.take(len(payload), now)):
            self._refuse(branch)
            return
        intake = self._parts.intake
        before = intake.refused
        if topic == wire.TOPIC_RANKS:
            newest = wire.read_encoded_ranks(payload)
            for part in (*newest.hellos, *newest.beats):
                intake.take_from_afar(bytes(part), branch.ranks)
            for part in newest.summaries:
                self._take_summary(branch, bytes(part))
        elif topic.startswith(wire.TOPIC_SUMMARY):
            self._take_summary(branch, payload)
        else:
            intake.take_from_afar(payload, branch.ranks)
        if intake.refused != before:
            # They are counted there.
            self.refused -= 1
            self._refuse(branch)

    def _take_summary(self, branch: _Branch, payload: bytes) -> None:
        summary = wire.read_telemetry(payload)
        if not isinstance(summary, wire.Summary):
            raise ValueError("no summary")
        # The newest of all come again with each new link.
        newest = summary.generation, summary.number
        if newest > branch.summaries.get(summary.rank, (-1, -1)):
            if summary.rank in branch.ranks:
                branch.summaries[summary.rank] = newest
            self._parts.intake.take_from_afar(payload, branch.ranks)

    def _take_command(self, peer: bytes, branch: _Branch, frames: list[bytes]) -> None:
        asker, *rest = frames
        if not branch.commands.take(1, self._clock()):
            # Whoever asks gets no answer in time, as of one that is overloaded.
            self._refuse(branch)
            return
        found = self._link.peers.get(peer)
        self._parts.commands.carry_out(askers.named(peer, asker), rest, None if found is None else found.offset_s)

    def _take_answer(self, peer: bytes, branch: _Branch, frames: list[bytes]) -> None:
        if len(frames) == 2:
            if not (self.asking.is_own(frames[0]) and self.asking.answered(peer, frames[1])):
                self._refuse(branch)
            return
        reply = self._beyond.answered(peer, frames)
        if reply is not None:
            self._parts.forwarding.take_from_beyond(int(frames[1]), reply)

    def _subscribe(self, peer: bytes, branch: _Branch, frames: list[bytes]) -> None:
        (topic,) = frames
        if not (self._parts.door.may_subscribe(topic) and self._parts.door.windows.subscribe(peer, topic)):
            self._refuse(branch)
            return
        self._parts.greeting.greet({topic})

    def _unsubscribe(self, peer: bytes, branch: _Branch, frames: list[bytes]) -> None:
        self._parts.door.windows.unsubscribe(peer, frames[0])

    def _take_members(self, peer: bytes, branch: _Branch, frames: list[bytes]) -> None:
        if not branch.bytes.take(len(frames[0]), self._clock()):
            self._refuse(branch)
            return
        found = read_members(frames[0], self._world)
        claimed = set(branch.hello.ranks)
        if any(member.rank not in claimed for member in found):
            self._refuse(branch)
        branch.members.update((member.rank, member) for member in found if member.rank in claimed)
        self._settle()

    def _take_decision(self, peer: bytes, branch: _Branch, frames: list[bytes]) -> None:
        serial, _ = frames
        self._decisions.heard(peer, int(serial))

    def _peer_of(self, host: str) -> bytes | None:
        for peer, branch in self._branches.items():
            if branch.hello.host == host and branch.state == LINKED:
                return peer
        return None

    def states(self) -> tuple[HostState, ...]:
        """Return what is known of all hosts, this one first."""
        own = self._local
        here = HostState(
            own.host, LINKED, tuple(own.members), time.time_ns(), 0.0, 0.0, 0.0, VERSION,
            gone=tuple(sorted(own.gone)), node=self._parts.run.node,
        )  # fmt: skip
        return here, *(self._state_of(peer, branch) for peer, branch in self._branches.items() if branch.ranks)

    def _state_of(self, peer: bytes, branch: _Branch) -> HostState:
        found = self._link.peers.get(peer)
        if found is None and branch.last is not None:
            heard, offset, error, rtt = (
                branch.last.heard_at_ns, branch.last.offset_ms, branch.last.offset_error_ms, branch.last.rtt_ms
            )  # fmt: skip
        elif found is None:
            heard = offset = error = rtt = None
        else:
            heard = time.time_ns() - int((self._clock() - found.heard_at) * 1e9)
            offset, error, rtt = _ms(found.offset_s), _ms(found.offset_error_s), _ms(found.rtt_s)
        ranks = tuple(sorted(branch.ranks))
        branch.last = HostState(
            branch.hello.host, branch.state, ranks, heard, offset, error, rtt, branch.hello.agent_version,
            gone=tuple(sorted(branch.ranks & self._lost)),
        )  # fmt: skip
        return branch.last

    def end_events(self) -> None:
        """Nothing is told of the end: the main thread does it."""

    def close(self) -> None:
        """Take no more questions."""
        self.asking.close()
        for peer in self._branches:
            self._parts.door.windows.forget(peer)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


__all__ = ["Head", "Peer"]
