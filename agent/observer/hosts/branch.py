"""The side of a branch: as long as it is linked to the head, the door here shows what the head publishes.

Not linked, this host is served by itself, as a run on one host is, and it is said which ranks are not heard.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.observer.end import last_words
from ddptop.agent.observer.hosts import askers
from ddptop.agent.observer.hosts.asking import Asking
from ddptop.agent.observer.hosts.elsewhere import Elsewhere
from ddptop.agent.observer.hosts.far import HEAD, LINKED, SILENT
from ddptop.agent.observer.hosts.link.frames import (
    ANSWER,
    COMMAND,
    MEMBERS,
    PUBLICATION,
    SUBSCRIBE,
    UNSUBSCRIBE,
)
from ddptop.agent.observer.hosts.link.peer import Peer
from ddptop.agent.observer.hosts.link.side import Link
from ddptop.agent.observer.hosts.parts import Local, Mirror, Parts, Subscriptions, read_members
from ddptop.agent.observer.hosts.subscribers import WATCHED
from ddptop.agent.observer.service.fills import is_reply
from ddptop.agent.run.records import Member
from ddptop.agent.version import VERSION
from ddptop.agent.wire import HostState

FIRST_S: Final = 10.0
"""Seconds after the start in which the link may be made before it is said that there is none."""
ALONE: Final = "alone"
"""The state of a host without a link; see `wire.HostState`."""
_ALWAYS: Final = frozenset({wire.TOPIC_HOSTS, wire.TOPIC_STATE, wire.TOPIC_VERDICTS})
"""What is wanted of the head also where nobody looks on here."""
_ONLOOKER: Final = b"a"
"""Beginning of the asker of a command of an onlooker here, before the onlooker's name."""
_LONGEST_NAME: Final = 31
"""Bytes of an onlooker's name."""
_MOST: Final = 65_536
"""Commands of onlookers here that the head may have to answer at a time."""


class Branch:
    """The way to the head; for use from the relay's thread."""

    role: Final = "branch"

    def __init__(
        self, parts: Parts, local: Local, elsewhere: Elsewhere, link: Link, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Know nothing of the head yet, on a link that connects."""
        self.is_over = False
        """The run is over, and the head may leave."""
        self.refused = 0
        """Messages of the head that could not be read."""
        self._parts = parts
        self._local = local
        self._elsewhere = elsewhere
        self._link = link
        self._clock = clock
        self._head: bytes | None = None
        """The peer, while linked."""
        self._session = -1
        self.host = ""
        """The host of the head, once it was heard."""
        self._members: dict[int, Member] = {}
        self._hosts: tuple[HostState, ...] = ()
        self.verdicts: tuple[wire.Verdict, ...] = ()
        """What the head has told to be wrong last."""
        self.cause: str | None = None
        """The first cause of the run's end, as the head has told it last."""
        self._subscriptions: Subscriptions | None = None
        self._mirror: Mirror | None = None
        self._under_way: dict[tuple[bytes, int, int], None] = {}
        """Commands of onlookers that the head has: asker, rank or -1, and number."""
        self.was_linked = False
        """True once the head was heard."""
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
    def is_linked(self) -> bool:
        """True while the head is heard."""
        return self._head is not None

    def arrived(self, peer: bytes, kind: bytes, frames: list[bytes]) -> None:
        """Take in a message of the head."""
        take = self._each.get(kind)
        if self._head is None or take is None:
            self.refused += 1
            return
        try:
            take(frames)
        except (ValueError, wire.Unreadable):
            self.refused += 1

    def changed(self, name: bytes) -> None:
        """Take note that the head is heard, silent or gone, or another process."""
        peer = self._link.peers.get(name)
        is_heard = peer is not None and peer.is_linked
        if self._head is not None and (not is_heard or peer is None or peer.session != self._session):
            self._end()
        if is_heard and peer is not None and self._head is None:
            self._begin(peer)

    def _begin(self, peer: Peer) -> None:
        """Show what the head publishes."""
        parts = self._parts
        if self._session != peer.session:
            # Over the same connection the head, which may have noticed nothing, subscribes to nothing anew.
            parts.door.subscribers.forget(peer.name)
        again, self.was_linked, self._session, self.host = self.was_linked, True, peer.session, peer.host
        self._head = peer.name
        self._subscriptions, self._mirror = Subscriptions(self._link, peer.name), Mirror(self._link, peer.name)
        self._mirror.send(self._local.members)
        parts.judge_here(False)
        parts.hanging.unheard = frozenset()
        parts.door.show_head(True)
        self.want()
        verb = "is heard again" if again else "is linked"
        parts.say(f"{self.host}, the host of rank 0, {verb}: {self._local.host} shows the ranks of all hosts")

    def _end(self) -> None:
        """Serve this host by itself."""
        peer, self._head = self._head, None
        assert peer is not None
        parts = self._parts
        parts.door.show_head(False)
        self.asking.lose(peer)
        parts.judge_here(True)
        parts.hanging.unheard = frozenset(self._members)
        host = self.host
        here = f"this is the view of {self._local.host} alone, {last_words.ranks(self._local.members)}"
        if not self.is_over:
            parts.say(f"{host}, the host of rank 0, is not heard: {here}", "warning")
        under_way, self._under_way = self._under_way, {}
        for asker, rank, number in under_way:
            text = f"{host}, the host of rank 0, is not heard: it may have been done"
            reply = wire.encode(wire.Reply(number, False, text))
            parts.door.send(asker, *([] if rank < 0 else [b"%d" % rank]), reply)
        # Who looks on is told what this host knows.
        parts.greet(parts.door.subscribed)

    def want(self, new: frozenset[bytes] | set[bytes] = frozenset()) -> None:
        """Subscribe at the head to what onlookers here do, anew to what is new to one of them."""
        if self._subscriptions is not None:
            subscribed = self._parts.door.subscribed
            record = {wire.TOPIC_RECORD} if self._parts.common.is_ready else set()
            self._subscriptions.want({*subscribed, *_ALWAYS, *record, *({WATCHED} if subscribed else ())}, again=new)

    def pass_up(self, asker: bytes, rank: int | None, command: wire.Command) -> bool:
        """Hand a question of an onlooker here to the head; return False where it is to be answered here."""
        if self._head is None:
            return False
        key = asker, -1 if rank is None else rank, command.id
        to = [] if rank is None else [b"%d" % rank]
        payload = wire.encode(deadline.departing(command))
        if len(asker) > _LONGEST_NAME:
            problem = f"the name of this connection has more than {_LONGEST_NAME} bytes"
        elif len(self._under_way) >= _MOST:
            problem = "too many commands wait; ask again"
        elif self._link.send(self._head, COMMAND, _ONLOOKER + asker, *to, payload):
            self._under_way[key] = None
            return True
        else:
            problem = "there is no room on the way to the host of rank 0; ask again"
        self._parts.door.send(asker, *to, wire.encode(wire.Reply(command.id, False, problem)))
        return True

    def turn(self) -> None:
        """Do what was asked for by the main thread."""
        self.asking.turn()

    def each_second(self) -> None:
        """Send what has changed here."""
        if self._mirror is not None and self._head is not None:
            self._mirror.send(self._local.members)
            self.want()

    def members(self) -> dict[int, Member]:
        """Return the records of the ranks on other hosts, as the head has sent them."""
        newest = max((each.generation for each in self._members.values()), default=0)
        return {
            rank: each
            for rank, each in self._members.items()
            if each.generation == newest and rank not in self._local.members
        }

    def look_at(self, ranks: frozenset[int]) -> None:
        """The head subscribes to the records of ranks in sight by itself."""

    def states(self) -> tuple[HostState, ...]:
        """Return what is known of all hosts: by the head, or by this one alone."""
        if self._head is not None:
            return self._hosts
        own = self._local
        here = HostState(
            own.host, ALONE, tuple(own.members), time.time_ns(), agent_version=VERSION, node=self._parts.run.node,
            gone=tuple(sorted(own.gone)),
        )  # fmt: skip
        others = [each for each in self._hosts if set(each.ranks).isdisjoint(own.members)]
        return here, *(_silent(each) for each in others)

    def _take_publication(self, frames: list[bytes]) -> None:
        topic, payload = frames
        if topic == wire.TOPIC_HOSTS:
            told = wire.read_telemetry(payload)
            if isinstance(told, wire.Hosts):
                self._hosts = told.hosts
        elif topic == wire.TOPIC_VERDICTS:
            told = wire.read_telemetry(payload)
            if isinstance(told, wire.Verdicts):
                self.verdicts = told.verdicts
        elif topic == wire.TOPIC_STATE:
            told = wire.read_telemetry(payload)
            if isinstance(told, wire.RunState):
                self.cause = told.cause
        elif topic == wire.TOPIC_RECORD:
            self._parts.common.take(wire.read_recorded(payload), self._local.host)
            return
        self._parts.door.show(topic, payload)

    def _take_command(self, frames: list[bytes]) -> None:
        assert self._head is not None
        asker, *rest = frames
        ahead_s = self._link.peers[self._head].offset_s
        self._parts.commands.carry_out(askers.named(self._head, asker), rest, ahead_s)

    def _take_answer(self, frames: list[bytes]) -> None:
        assert self._head is not None
        asker, *to, payload = frames
        if self.asking.is_own(asker):
            if not self.asking.answered(self._head, payload):
                self.refused += 1
            return
        if asker[:1] != _ONLOOKER:
            self.refused += 1
            return
        if is_reply(payload):
            with contextlib.suppress(ValueError, wire.Unreadable):
                reply = wire.read_history(payload)
                rank = int(to[0]) if to else -1
                self._under_way.pop((asker[1:], rank, getattr(reply, "id", 0)), None)
        self._parts.door.send(asker[1:], *to, payload)

    def _subscribe(self, frames: list[bytes]) -> None:
        assert self._head is not None
        (topic,) = frames
        if self._parts.door.may_subscribe(topic) and self._parts.door.subscribers.subscribe(self._head, topic):
            if topic == wire.TOPIC_RECORD:
                for payload in self._parts.common.all():
                    self._elsewhere.publish(self._head, topic, payload)
            else:
                self._parts.greet({topic})
        else:
            self.refused += 1

    def _unsubscribe(self, frames: list[bytes]) -> None:
        assert self._head is not None
        self._parts.door.subscribers.unsubscribe(self._head, frames[0])

    def _take_members(self, frames: list[bytes]) -> None:
        found = read_members(frames[0], self._parts.run.world)
        self._members.update((member.rank, member) for member in found)

    def _peer_of(self, host: str) -> bytes | None:
        if host in (HEAD, self.host):
            return self._head
        return None

    def close(self) -> None:
        """Leave the head."""
        self.asking.close()
        for peer in self._link.peers:
            self._parts.door.subscribers.forget(peer)
        self._parts.door.show_head(False)


def _silent(host: HostState) -> HostState:
    return msgspec.structs.replace(host, state=SILENT) if host.state == LINKED else host
