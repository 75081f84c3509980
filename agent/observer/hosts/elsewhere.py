"""Ranks, requesters and observers on other hosts, in the place of sockets: who is there, and what goes to them.

Forwarding, fills and the service take it for a socket. It is empty as long as there is no link.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Set
from functools import lru_cache
from typing import Final

import msgspec
import zmq

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.observer.hosts.link.frames import ANSWER, COMMAND, PUBLICATION
from ddptop.agent.observer.hosts.link.side import Side

LINK: Final = b"link:"
"""Beginning of the name of a requester at another host, `link:<peer>:<name there>`.

Nobody here is called so: the service refuses that, and names that ZeroMQ makes up begin with a zero byte."""
EACH_HOST: Final = LINK + b"00:each"
"""Sender of a kill that every host is told by itself, as by its scheduler: this one does not wait for the head."""
_ROOM: Final = wire.MAX_MESSAGE_BYTES - (4 << 10)
"""Bytes of the parts of one bundle."""
_FORWARDED: Final = b"f"
"""Requester of the commands to single ranks, whose numbers tell them apart."""
_FILL: Final = b"q"
"""Beginning of the requester of a question for records."""
_MOST_WAITING_BYTES: Final = 8 << 20
"""Bytes of an answer for which there is no room yet; beyond them it is given up, and asked for anew later."""
_MOST_TOPICS: Final = 8_192
"""Topics of one observer: a few, and the records of ranks in sight one by one."""
_TOPIC: Final = re.compile(rb"(?:steps|rank)(?:/[0-9]{0,5})?|[a-z]{0,9}")


def is_topic(topic: bytes) -> bool:
    """Say whether somebody may subscribe to this: a topic, or the beginning of one."""
    return _TOPIC.fullmatch(topic) is not None


def is_elsewhere(requester: bytes) -> bool:
    """Say whether a command has come from another observer."""
    return requester.startswith(LINK)


def named(peer: bytes, requester: bytes) -> bytes:
    """Return the name here of a requester at another host."""
    return LINK + peer.hex().encode() + b":" + requester


def host_of(requester: bytes) -> bytes:
    """Return under which name a command is counted: all requesters at another host are one."""
    return requester[: requester.index(b":", len(LINK))] if is_elsewhere(requester) else requester


@lru_cache(1024)
def _parts(requester: bytes) -> tuple[bytes, bytes]:
    """Return the peer of a requester at another host, and its name there."""
    peer, _, name = requester[len(LINK) :].partition(b":")
    return bytes.fromhex(peer.decode()), name


class Conversation:
    """A question for the records of a rank."""

    def __init__(self, rank: int, name: bytes) -> None:
        self.rank = rank
        self.name = name
        self._parts: deque[bytes] = deque()
        self._bytes = 0
        self._over = False

    def take(self, payload: bytes) -> None:
        if self._bytes + len(payload) > _MOST_WAITING_BYTES:
            self._over = True
        else:
            self._parts.append(payload)
            self._bytes += len(payload)

    def receive(self) -> bytes:
        if not self._parts:
            raise EOFError if self._over else zmq.Again
        payload = self._parts.popleft()
        self._bytes -= len(payload)
        return payload

    def end(self) -> None:
        self._over = True


class Elsewhere:
    """The ranks and the observers of other hosts; for use from one thread."""

    def __init__(self) -> None:
        """Know nobody."""
        self.link: Side | None = None
        self.owners: dict[int, bytes] = {}
        """By rank on another host, the peer by which it is reached."""
        self.absent: Set[int] = frozenset()
        """Of these, the ranks whose process is gone, or whose host is not heard."""
        self.unheard: Set[int] = frozenset()
        """Of these, the ranks whose host is not heard."""
        self.refused = 0
        self._number = 0
        self._conversations: dict[bytes, Conversation] = {}
        self._replies: list[tuple[int, wire.Reply]] = []
        self._lost: set[int] = set()
        self._topics: dict[bytes, set[bytes]] = {}
        """By peer, what its observer subscribes to: at a branch the head's, at the head those of branches."""
        self._shows_head = False
        self._bundle: list[msgspec.Raw] = []
        self._bundle_bytes = 0
        self.takes_bundles = False
        """True while the observer of another host judges by what the ranks here publish."""
        self.version = 0
        """Another number after each change of who gets what is published."""

    def has(self, rank: int) -> bool:
        """Say whether a rank is on another host."""
        return rank in self.owners

    def is_there(self, rank: int) -> bool:
        """Say whether it was found, has not ended, and its host is heard."""
        return rank in self.owners and rank not in self.absent

    def forward(self, rank: int, command: wire.Command) -> bool:
        """Send it a command; return False where there is no room, or no link."""
        return self.is_there(rank) and self._ask(rank, _FORWARDED, wire.encode(deadline.departing(command)))

    def forward_to_host(self, rank: int, command: wire.Command) -> bool:
        """Send the observer of its host a command, also where the rank itself is gone; likewise."""
        is_heard = rank in self.owners and rank not in self.unheard
        return is_heard and self._ask(rank, _FORWARDED, wire.encode(command))

    def ask(self, rank: int, payload: bytes) -> Conversation | None:
        """Ask it for records; return None where it cannot be reached."""
        self._number += 1
        name = b"%s%d" % (_FILL, self._number)
        if not (self.is_there(rank) and self._ask(rank, name, payload)):
            return None
        conversation = self._conversations[name] = Conversation(rank, name)
        return conversation

    def close(self, conversation: Conversation) -> None:
        """Take no more of an answer."""
        self._conversations.pop(conversation.name, None)

    def _ask(self, rank: int, requester: bytes, payload: bytes) -> bool:
        return self._send(self.owners[rank], COMMAND, requester, b"%d" % rank, payload)

    def answered(self, peer: bytes, frames: list[bytes]) -> None:
        """Take in an answer of a rank; one in the name of a rank of another host is refused."""
        requester, number, payload = frames
        rank = int(number) if number.isdigit() else -1
        if self.owners.get(rank) != peer:
            self.refused += 1
        elif requester == _FORWARDED:
            try:
                reply = wire.read_answer(payload)
            except wire.Unreadable:
                self.refused += 1
                return
            if isinstance(reply, wire.Reply):
                self._replies.append((rank, reply))
        else:
            conversation = self._conversations.get(requester)
            # Of one that was given up the rest may be under way.
            if conversation is not None and conversation.rank == rank:
                conversation.take(payload)

    def lose(self, ranks: Set[int]) -> None:
        """End the questions to ranks that cannot be reached any more."""
        self._lost |= ranks
        for conversation in self._conversations.values():
            if conversation.rank in ranks:
                conversation.end()

    def take_replies(self) -> tuple[list[tuple[int, wire.Reply]], set[int]]:
        """Return, once each, the replies to commands that were forwarded, and ranks that will not answer."""
        found = self._replies, self._lost
        self._replies, self._lost = [], set()
        return found

    def forget(self) -> None:
        """Forget everybody: there is no link any more."""
        self.lose(set(self.owners))
        self.link, self.owners = None, {}
        self.absent = self.unheard = frozenset()
        self._topics.clear()
        self.show_head(False)

    @property
    def shows_head(self) -> bool:
        """True at a branch while its onlookers get what the head publishes."""
        return self._shows_head

    def show_head(self, shows_head: bool) -> None:
        """Let onlookers here have what the head publishes, or again what this host knows."""
        self._shows_head = shows_head
        self.version += 1

    def subscribe(self, peer: bytes, topic: bytes) -> bool:
        """Take note of a subscription; return False where there are too many, or there is no such topic."""
        topics = self._topics.setdefault(peer, set())
        if not is_topic(topic) or (len(topics) >= _MOST_TOPICS and topic not in topics):
            return False
        topics.add(topic)
        self._note_topics()
        return True

    def unsubscribe(self, peer: bytes, topic: bytes) -> None:
        """Take note of the end of a subscription."""
        self._topics.get(peer, set()).discard(topic)
        self._note_topics()

    def leave(self, peer: bytes) -> None:
        """Take note that nobody is there any more."""
        self._topics.pop(peer, None)
        self._note_topics()

    def _note_topics(self) -> None:
        self.version += 1
        self.takes_bundles = bool(self.takers(wire.TOPIC_BUNDLE))

    def takers(self, topic: bytes) -> tuple[bytes, ...]:
        """Return those who subscribe to a topic or to its beginning."""
        if not self._topics:
            return ()
        beginnings = [topic[:length] for length in range(len(topic) + 1)]
        return tuple(peer for peer, topics in self._topics.items() if not topics.isdisjoint(beginnings))

    @property
    def topics(self) -> set[bytes]:
        """What anybody at another host subscribes to."""
        return set().union(*self._topics.values())

    def publish(self, peer: bytes, topic: bytes, payload: bytes) -> None:
        """Send the observer of another host a publication; one that does not read loses it."""
        self._send(peer, PUBLICATION, topic, payload)

    def publish_all(self, topic: bytes, payload: bytes) -> None:
        """Send it to each that subscribes to it."""
        for peer in self.takers(topic):
            self.publish(peer, topic, payload)

    def add(self, payload: bytes) -> None:
        """Put a message of a rank here into the next bundle; one without room in any is not judged elsewhere."""
        if self._bundle_bytes + len(payload) > _ROOM:
            self.send_bundle()
        if len(payload) <= _ROOM:
            self._bundle.append(msgspec.Raw(payload))
            self._bundle_bytes += len(payload)

    def send_bundle(self) -> None:
        """Send what was added since the last bundle."""
        if self._bundle:
            self.publish_all(wire.TOPIC_BUNDLE, wire.encode(wire.Bundle(tuple(self._bundle))))
            self._bundle.clear()
            self._bundle_bytes = 0

    def answer(self, requester: bytes, frames: tuple[bytes, ...]) -> bool | None:
        """Answer somebody at another host: True once sent, None where there is no room now, False without a link."""
        peer, name = _parts(requester)
        to = None if self.link is None else self.link.peers.get(peer)
        if to is None or not to.is_connected:
            return False
        return self._send(peer, ANSWER, name, *frames) or None

    def _send(self, peer: bytes, kind: bytes, *frames: bytes) -> bool:
        return self.link is not None and self.link.send(peer, kind, *frames)
