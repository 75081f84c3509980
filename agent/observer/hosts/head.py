"""The side of the head: the ranks of all other hosts come in by their observers, and its door is theirs, too.

What a branch says is taken for its own ranks only, as far as it can be true, and no faster than ranks speak.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.observer.hosts import askers
from ddptop.agent.observer.hosts.asking import Asking
from ddptop.agent.observer.hosts.connected import Connected
from ddptop.agent.observer.hosts.elsewhere import Elsewhere
from ddptop.agent.observer.hosts.far import GONE, LINKED, SILENT
from ddptop.agent.observer.hosts.link.frames import (
    ANSWER,
    COMMAND,
    MEMBERS,
    PUBLICATION,
    SUBSCRIBE,
    UNSUBSCRIBE,
)
from ddptop.agent.observer.hosts.link.side import Link
from ddptop.agent.observer.hosts.parts import Local, Mirror, Parts, Subscriptions, read_members
from ddptop.agent.observer.hosts.subscribers import WATCHED
from ddptop.agent.run.identity import Process
from ddptop.agent.run.records import Member
from ddptop.agent.version import VERSION
from ddptop.agent.wire import EACH_RECORD, HostState

_SMALL: Final = (
    wire.TOPIC_NEWEST, wire.TOPIC_HELLO, wire.TOPIC_BEAT, wire.TOPIC_STEPS, wire.TOPIC_SUMMARY, wire.TOPIC_EVENT,
    wire.TOPIC_CHECKSUMS,
)  # fmt: skip
_LARGE: Final = (wire.TOPIC_NEWEST, wire.TOPIC_EVENT, wire.TOPIC_CHECKSUMS)
"""In a large group the newest of all ranks of a host comes together, once a second."""
_OF_SETTLED: Final = frozenset((PUBLICATION, COMMAND, ANSWER))
"""What can be taken in only once it is known which ranks are where."""
GONE_S: Final = 10.0
"""Seconds after the end of its connection in which a host may come back before it counts as gone."""
_SETTLES_S: Final = 30.0
"""Seconds within which all hosts have seen a restart of the group."""


class Head:
    """All branches; for use from the relay's thread."""

    role: Final = "head"

    def __init__(
        self, parts: Parts, local: Local, elsewhere: Elsewhere, link: Link, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Know no branch yet, on a link that listens."""
        self.refused = 0
        """Messages of branches that cannot be true, or are too many."""
        self._parts = parts
        self._local = local
        self._elsewhere = elsewhere
        self._link = link
        self._clock = clock
        self._world = parts.run.world
        self._branches: dict[bytes, Connected] = {}
        self._followed: dict[int, tuple[int, Process]] = {}
        self._in_sight: frozenset[int] = frozenset()
        """Ranks of a large group whose records are wanted at once."""
        self._known: dict[int, Member] = {}
        """The records of all ranks, as the branches were sent them last."""
        self._lost: set[int] = set()
        """Ranks on other hosts whose process is gone."""
        self._changes: dict[bytes, bool] = {}
        """Branches with a change that has no consequence yet, and whether they were away. A thousand hosts may come, or
        fall silent, in one moment, and to settle takes as long as there are ranks."""
        self.asking = Asking(parts.wake, self._peer_of, link.send, parts.send_events)
        elsewhere.link = link
        self._each: Final = {
            PUBLICATION: self._take_publication,
            COMMAND: self._take_command,
            ANSWER: self._take_answer,
            SUBSCRIBE: self._subscribe,
            UNSUBSCRIBE: self._unsubscribe,
            MEMBERS: self._take_members,
        }

    @property
    def judges(self) -> bool:
        """The head judges."""
        return True

    def arrived(self, peer: bytes, kind: bytes, frames: list[bytes]) -> None:
        """Take in a message of a branch."""
        branch, take = self._branches.get(peer), self._each.get(kind)
        if branch is None or take is None:
            self.refused += 1
            return
        if peer in self._changes and kind in _OF_SETTLED:
            self._settle_changes()
        try:
            take(branch, frames)
        except (ValueError, wire.Unreadable):
            self._refuse(branch)

    def _refuse(self, branch: Connected) -> None:
        self.refused += 1
        branch.refused += 1
        if branch.refused == 1:
            self._parts.say(f"{branch.peer.host} sends what cannot be true, or too much: it is left out", "warning")

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
            branch.allow(max(1, min(len(peer.ranks), self._world)))
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
                for rank in branch.ranks:
                    self._parts.intake.look_for_gap(rank)

    def _forget(self, branch: Connected) -> None:
        """Forget what a branch has asked for."""
        self.asking.lose(branch.peer.name)
        self._parts.door.subscribers.forget(branch.peer.name)

    def _settle(self) -> None:
        """Find out which ranks are on which host, and take in those that are new."""
        generation, here = self._parts.intake.generation, self._local.members
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
                self._parts.follow_elsewhere(member)
        for branch in self._branches.values():
            for rank in branch.ranks.intersection(branch.peer.hello.gone) - self._lost:
                if self._followed.get(rank, (-1,))[0] == generation == branch.peer.hello.generation:
                    self._lost.add(rank)
                    self._parts.lose_elsewhere(rank)
        self._note_states()

    def _note_states(self) -> None:
        unheard: set[int] = set()
        for branch in self._branches.values():
            peer = branch.peer
            branch.state = LINKED if peer.is_linked else SILENT if peer.is_connected else self._state_of_lost(branch)
            if branch.state != LINKED:
                unheard |= branch.ranks
        silent = frozenset(unheard)
        unheard -= self._lost
        newly = unheard - set(self._parts.hanging.unheard)
        self._parts.hanging.unheard = frozenset(unheard)
        self._elsewhere.absent, self._elsewhere.unheard = frozenset(unheard | self._lost), silent
        if newly:
            self._elsewhere.lose(newly)
            for rank in newly:
                self._parts.forwarding.lose_elsewhere(rank)

    def _state_of_lost(self, branch: Connected) -> str:
        """Return the state of a host whose connection has ended: it may come back within seconds."""
        is_over = bool(branch.ranks) and branch.ranks <= self._lost
        return GONE if is_over or self._clock() - branch.peer.since > GONE_S else SILENT

    def _topics(self, branch: Connected) -> set[bytes]:
        topics = set(_SMALL if self._world <= EACH_RECORD else _LARGE)
        if self._parts.common.is_ready:
            topics.add(wire.TOPIC_RECORD)
        if self._parts.door.is_watched:
            topics.add(WATCHED)
        if self._world > EACH_RECORD:
            topics |= {wire.topic_of(wire.TOPIC_STEPS, rank) for rank in self._in_sight & branch.ranks}
        return topics

    def look_at(self, ranks: frozenset[int]) -> None:
        """Have the records of these ranks of a large group at once, as far as they are on other hosts."""
        self._in_sight = ranks

    def _subscribe_at(self, branch: Connected, *, again: bool = False) -> None:
        branch.subscriptions.want(self._topics(branch), again=(wire.TOPIC_NEWEST, wire.TOPIC_RECORD) if again else ())

    def turn(self) -> None:
        """Do what was left for want of room, and what was asked for by the main thread."""
        if self._changes:
            self._settle_changes()
        self.asking.turn()

    def each_second(self) -> None:
        """Mirror the records of ranks, and follow what has changed here."""
        self._settle()
        known = {**self.members(), **self._local.members}
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
        own, other, now = self._parts.intake.generation, branch.peer.hello.generation, self._clock()
        if own == other or not branch.ranks:
            branch.otherwise_since = None
        elif branch.otherwise_since is None:
            branch.otherwise_since = now
        elif now - branch.otherwise_since > _SETTLES_S and not branch.told_otherwise:
            branch.told_otherwise = True
            self._parts.say(
                f"{branch.peer.host} counts {other} restarts of the group and this host {own}, as where one of them "
                "has joined the training later: the ranks there are not shown here",
                "warning",
            )

    def members(self) -> dict[int, Member]:
        """Return the records of the ranks on other hosts."""
        generation = self._parts.intake.generation
        return {
            rank: member
            for branch in self._branches.values()
            for rank, member in branch.members.items()
            if rank in branch.ranks and member.generation == generation
        }

    def _take_publication(self, branch: Connected, frames: list[bytes]) -> None:
        topic, payload = frames
        now = self._clock()
        if not (branch.messages.take(1, now) and branch.bytes.take(len(payload), now)):
            self._refuse(branch)
            return
        intake = self._parts.intake
        before = intake.refused
        if topic == wire.TOPIC_NEWEST:
            for part in wire.read_newest(payload).messages:
                self._take_each(branch, bytes(part))
        elif topic == wire.TOPIC_RECORD:
            # Its verdicts are those of a host that was alone.
            for event in wire.read_recorded(payload).events:
                self._take_event(branch, event)
        else:
            self._take_each(branch, payload)
        if intake.refused != before:
            # They are counted there.
            self.refused -= 1
            self._refuse(branch)

    def _take_each(self, branch: Connected, payload: bytes) -> None:
        message = wire.read_telemetry(payload)
        if isinstance(message, wire.Event):
            self._take_event(branch, message)
            return
        if isinstance(message, wire.Summary):
            # The newest of all come again with each new link.
            newest = message.generation, message.number
            if newest <= branch.summaries.get(message.rank, (-1, -1)):
                return
            if message.rank in branch.ranks:
                branch.summaries[message.rank] = newest
        self._parts.intake.take_from_elsewhere(message, payload, branch.ranks)

    def _take_event(self, branch: Connected, event: wire.Event) -> None:
        named = _named(event, branch.peer.host)
        # What was told without a link comes again with it.
        if self._parts.common.is_new(named):
            self._parts.intake.take_from_elsewhere(named, wire.encode(named), branch.ranks)

    def _take_command(self, branch: Connected, frames: list[bytes]) -> None:
        asker, *rest = frames
        if not branch.commands.take(1, self._clock()):
            # Whoever asks gets no answer in time, as of one that is overloaded.
            self._refuse(branch)
            return
        self._parts.commands.carry_out(askers.named(branch.peer.name, asker), rest, branch.peer.offset_s)

    def _take_answer(self, branch: Connected, frames: list[bytes]) -> None:
        if len(frames) == 2:
            if not (self.asking.is_own(frames[0]) and self.asking.answered(branch.peer.name, frames[1])):
                self._refuse(branch)
            return
        reply = self._elsewhere.answered(branch.peer.name, frames)
        if reply is not None:
            self._parts.forwarding.take_from_elsewhere(int(frames[1]), reply)

    def _subscribe(self, branch: Connected, frames: list[bytes]) -> None:
        (topic,) = frames
        if not (
            self._parts.door.may_subscribe(topic) and self._parts.door.subscribers.subscribe(branch.peer.name, topic)
        ):
            self._refuse(branch)
            return
        if topic == wire.TOPIC_RECORD:
            for payload in self._parts.common.all():
                self._elsewhere.publish(branch.peer.name, topic, payload)
        else:
            self._parts.greet({topic})

    def _unsubscribe(self, branch: Connected, frames: list[bytes]) -> None:
        self._parts.door.subscribers.unsubscribe(branch.peer.name, frames[0])

    def _take_members(self, branch: Connected, frames: list[bytes]) -> None:
        if not branch.bytes.take(len(frames[0]), self._clock()):
            self._refuse(branch)
            return
        found = read_members(frames[0], self._world)
        claimed = set(branch.peer.ranks)
        if any(member.rank not in claimed for member in found):
            self._refuse(branch)
        branch.members.update((member.rank, member) for member in found if member.rank in claimed)
        self._changes.setdefault(branch.peer.name, False)

    def _peer_of(self, host: str) -> bytes | None:
        for name, branch in self._branches.items():
            if branch.peer.host == host and branch.state == LINKED:
                return name
        return None

    def states(self) -> tuple[HostState, ...]:
        """Return what is known of all hosts, this one first."""
        own = self._local
        here = HostState(
            own.host, LINKED, tuple(own.members), time.time_ns(), 0.0, 0.0, 0.0, VERSION,
            gone=tuple(sorted(own.gone)), node=self._parts.run.node,
        )  # fmt: skip
        return here, *(self._state_of(branch) for branch in self._branches.values() if branch.ranks)

    def _state_of(self, branch: Connected) -> HostState:
        peer = branch.peer
        return HostState(
            peer.host, branch.state, tuple(sorted(branch.ranks)), peer.heard_at_ns, _ms(peer.offset_s),
            _ms(peer.offset_error_s), _ms(peer.rtt_s), peer.hello.agent_version,
            gone=tuple(sorted(branch.ranks & self._lost)),
        )  # fmt: skip

    def close(self) -> None:
        """Take no more questions."""
        self.asking.close()
        for peer in self._branches:
            self._parts.door.subscribers.forget(peer)


def _named(event: wire.Event, host: str) -> wire.Event:
    """Return an event with the name of its host, where it is of no rank."""
    if event.rank is not None or event.action or host in event.text:
        return event
    return msgspec.structs.replace(event, text=f"{host}: {event.text}")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
