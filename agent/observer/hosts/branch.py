"""The side of a branch: as long as it is linked to the head, its onlookers get what the head publishes.

Not linked, this host is served by itself, as a run on one host is, and it is said which ranks are not heard.
"""

from __future__ import annotations

import contextlib
from collections.abc import Set
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.observer.hosts import elsewhere
from ddptop.agent.observer.hosts.link.frames import ANSWER, COMMAND, MEMBERS, PUBLICATION, SUBSCRIBE, UNSUBSCRIBE
from ddptop.agent.observer.hosts.link.peer import Peer
from ddptop.agent.observer.hosts.link.side import Side
from ddptop.agent.observer.hosts.questions import HEAD, LINKED, SILENT, Questions
from ddptop.agent.observer.hosts.sides import (
    Answered,
    Asked,
    Mirror,
    OneSide,
    Shown,
    Subscribed,
    Subscriptions,
    ThisHost,
    read_members,
)
from ddptop.agent.run.records import Member
from ddptop.agent.wire import HostFrame
from ddptop.agent.wire.vocabulary.refusals import Unheard

FIRST_S: Final = 10.0
"""Seconds after the start in which the link may be made before it is said that there is none."""
ALONE: Final = "alone"
"""The state of a host without a link; see `wire.HostFrame`."""
_ONLOOKER: Final = b"a"
"""Beginning of the requester of a command of an onlooker here, before the onlooker's name."""
_LONGEST_NAME: Final = 31
"""Bytes of an onlooker's name."""
_MOST: Final = 65_536
"""Commands of onlookers here that the head may have to answer at a time."""


class Branch(OneSide):
    """The way to the head; for use from the relay's thread."""

    def __init__(self, here: ThisHost, link: Side, questions: Questions) -> None:
        """Know nothing of the head yet, on a link that connects."""
        super().__init__(here, link, questions)
        self.is_over = False
        """The run is over, and the head may leave."""
        self.was_linked = False
        """True once the head was heard."""
        self.host = ""
        """The host of the head, once it was heard."""
        self.verdicts: tuple[wire.Verdict, ...] = ()
        """What the head has told to be wrong last."""
        self.cause: str | None = None
        """The first cause of the run's end, as the head has told it last."""
        self._head: Peer | None = None
        """The head, while linked."""
        self._session = -1
        self._members: dict[int, Member] = {}
        self._hosts: tuple[HostFrame, ...] = ()
        self._subscriptions: Subscriptions | None = None
        self._mirror: Mirror | None = None
        self._under_way: dict[tuple[bytes, int, int], None] = {}
        """Commands of onlookers that the head has: requester, rank or -1, and number."""

    @property
    def is_linked(self) -> bool:
        """True while the head is heard."""
        return self._head is not None

    def arrived(self, peer: bytes, kind: bytes, frames: list[bytes]) -> None:
        """Take in a message of the head."""
        try:
            is_good = self._head is not None and self._take(self._head, kind, frames)
        except (ValueError, wire.Unreadable):
            is_good = False
        self.refused += not is_good

    def _take(self, head: Peer, kind: bytes, frames: list[bytes]) -> bool:
        """Take in a message; return False where it cannot be read."""
        if kind == PUBLICATION:
            self._take_publication(*frames)
        elif kind == COMMAND:
            self._here.news.append(Asked(elsewhere.named(head.name, frames[0]), frames[1:], head.pings.offset_s))
        elif kind == ANSWER and self.questions.is_own(frames[0]):
            return self.questions.answered(head.name, frames[-1])
        elif kind == ANSWER:
            return frames[0][:1] == _ONLOOKER and self._take_answer(frames[0][1:], frames[1:])
        elif kind == SUBSCRIBE:
            return self._subscribe(head.name, frames[0])
        elif kind == UNSUBSCRIBE:
            self._elsewhere.unsubscribe(head.name, frames[0])
        elif kind == MEMBERS:
            found = read_members(frames[0], self._here.run.world)
            self._members.update((member.rank, member) for member in found)
        return True

    def changed(self, name: bytes) -> None:
        """Take note that the head is heard, silent or gone, or another process."""
        peer = self._link.peers.get(name)
        heard = peer if peer is not None and peer.is_linked else None
        if self._head is not None and (heard is None or heard.session != self._session):
            self._end(self._head)
        if heard is not None and self._head is None:
            self._begin(heard)

    def _begin(self, peer: Peer) -> None:
        """Show what the head publishes."""
        if self._session != peer.session:
            # Over the same connection the head, which may have noticed nothing, subscribes to nothing anew.
            self._elsewhere.leave(peer.name)
        verb = "is heard again" if self.was_linked else "is linked"
        self.was_linked, self._session, self.host, self._head = True, peer.session, peer.host, peer
        self._subscriptions, self._mirror = Subscriptions(self._link, peer.name), Mirror(self._link, peer.name)
        self._mirror.send(self._here.members)
        self.unheard = frozenset()
        self._elsewhere.show_head(True)
        self.want()
        self._here.say(f"{self.host}, the host of rank 0, {verb}: {self._here.host} shows the ranks of all hosts")

    def _end(self, head: Peer) -> None:
        """Serve this host by itself."""
        self._head = None
        self._elsewhere.show_head(False)
        self.questions.lose(head.name)
        self.unheard = frozenset(self._members)
        missed = f"{self.host}, the host of rank 0, is not heard"
        if not self.is_over:
            self._here.say(f"{missed}: {self._here.alone}", "warning")
        under_way, self._under_way = self._under_way, {}
        for requester, rank, number in under_way:
            self._refuse(requester, _to(rank), number, f"{missed}: it may have been done", Unheard.kind)
        # Who looks on is told what this host knows.
        self._here.news.append(Subscribed(None))

    def want(self, new: Set[bytes] = frozenset()) -> None:
        """Subscribe at the head to what onlookers here do, anew to what is new to one of them."""
        if self._subscriptions is not None:
            subscribed = self._here.subscribed
            record = {wire.TOPIC_RECORD} if self._here.common.is_ready else set()
            self._subscriptions.want({*subscribed, wire.TOPIC_OUTLINE, *record}, again=new)

    def pass_up(self, requester: bytes, rank: int | None, command: wire.Command) -> bool:
        """Hand a question of an onlooker here to the head; return False where it is to be answered here."""
        if self._head is None:
            return False
        number = -1 if rank is None else rank
        payload = wire.encode(deadline.departing(command))
        if len(requester) > _LONGEST_NAME:
            problem = f"the name of this connection has more than {_LONGEST_NAME} bytes"
        elif len(self._under_way) >= _MOST:
            problem = "too many commands wait; ask again"
        elif self._link.send(self._head.name, COMMAND, _ONLOOKER + requester, *_to(number), payload):
            self._under_way[requester, number, command.id] = None
            return True
        else:
            problem = "there is no room on the way to the host of rank 0; ask again"
        self._refuse(requester, _to(number), command.id, problem)
        return True

    def _refuse(self, requester: bytes, to: tuple[bytes, ...], number: int, problem: str, kind: str = "") -> None:
        reply = wire.Reply(number, False, problem, refusal=kind)
        self._here.news.append(Answered(requester, (*to, wire.encode(reply))))

    def turn(self) -> None:
        """Do what was asked for by the main thread."""
        heads = {} if self._head is None else dict.fromkeys((HEAD, self.host), self._head.name)
        self.questions.turn(self._link, heads)

    def each_second(self) -> None:
        """Send what has changed here."""
        if self._mirror is not None and self._head is not None:
            self._mirror.send(self._here.members)
            self.want()

    def members(self) -> dict[int, Member]:
        """Return the records of the ranks on other hosts, as the head has sent them."""
        newest = max((each.generation for each in self._members.values()), default=0)
        return {
            rank: each
            for rank, each in self._members.items()
            if each.generation == newest and rank not in self._here.members
        }

    def look_at(self, topics: Set[bytes]) -> None:
        """The head subscribes to the ranks in sight by itself."""

    def states(self) -> tuple[HostFrame, ...]:
        """Return what is known of all hosts: by the head, or by this one alone."""
        if self._head is not None:
            return self._hosts
        others = [each for each in self._hosts if set(each.ranks).isdisjoint(self._here.members)]
        return self._here.state(ALONE), *(_silent(each) for each in others)

    def _take_publication(self, topic: bytes, payload: bytes) -> None:
        if topic == wire.TOPIC_RECORD:
            self._here.common.take(wire.read_recorded(payload), self._here.host)
            return
        if topic == wire.TOPIC_OUTLINE:
            frame = wire.read_frame(payload)
            if isinstance(frame, wire.RunFrame):
                self._hosts, self.verdicts, self.cause = frame.on_hosts, frame.verdicts, frame.cause
        else:
            self._here.news.append(Shown(topic, payload))

    def _take_answer(self, requester: bytes, frames: list[bytes]) -> bool:
        """Take in the answer to an onlooker here, perhaps the last part of it."""
        if wire.is_reply(frames[-1]):
            with contextlib.suppress(ValueError, wire.Unreadable):
                reply = wire.read_history(frames[-1])
                self._under_way.pop((requester, int(frames[0]) if frames[1:] else -1, getattr(reply, "id", 0)), None)
        self._here.news.append(Answered(requester, tuple(frames)))
        return True


def _to(rank: int) -> tuple[bytes, ...]:
    """Return the frames that name a rank before a command or an answer; none for -1, the observer."""
    return () if rank < 0 else (b"%d" % rank,)


def _silent(host: HostFrame) -> HostFrame:
    return msgspec.structs.replace(host, state=SILENT) if host.state == LINKED else host
