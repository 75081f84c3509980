"""What goes to other hosts and comes back: commands to ranks there, publications and answers to observers there.

Forwarding, fills and door take it for a socket. It is empty as long as there is no link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Set
from functools import lru_cache
from typing import Final

import zmq

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.observer.hosts import askers
from ddptop.agent.observer.hosts.link.frames import ANSWER, COMMAND, PUBLICATION
from ddptop.agent.observer.hosts.link.side import Link

_FORWARDED: Final = b"f"
"""Asker of the commands to single ranks, whose numbers tell them apart."""
_FILL: Final = b"q"
"""Beginning of the asker of a question for records."""
_MOST_WAITING_BYTES: Final = 8 << 20
"""Bytes of an answer for which there is no room yet; beyond them it is given up, and asked for anew later."""


class Conversation:
    """A question for the records of a rank."""

    def __init__(self, rank: int, forget: Callable[[], object]) -> None:
        self.rank = rank
        self._forget = forget
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

    def close(self) -> None:
        self._forget()


class Elsewhere:
    """The ranks and the observers of other hosts; for use from one thread."""

    def __init__(self) -> None:
        """Know nobody."""
        self.link: Link | None = None
        self.owners: dict[int, bytes] = {}
        """By rank on another host, the peer by which it is reached."""
        self.absent: Set[int] = frozenset()
        """Of these, the ranks whose process is gone, or whose host is not heard."""
        self.unheard: Set[int] = frozenset()
        """Of these, the ranks whose host is not heard."""
        self.refused = 0
        self._number = 0
        self._conversations: dict[bytes, Conversation] = {}

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
        conversation = Conversation(rank, lambda: self._conversations.pop(name, None))
        self._conversations[name] = conversation
        return conversation

    def _ask(self, rank: int, asker: bytes, payload: bytes) -> bool:
        return self._send(self.owners[rank], COMMAND, asker, b"%d" % rank, payload)

    def answered(self, peer: bytes, frames: list[bytes]) -> wire.Reply | None:
        """Take in an answer of a rank; return the reply to a command that was forwarded, None where it is none.

        An answer in the name of a rank of another host is refused.
        """
        asker, number, payload = frames
        rank = int(number) if number.isdigit() else -1
        if self.owners.get(rank) != peer:
            self.refused += 1
            return None
        if asker == _FORWARDED:
            try:
                reply = wire.read_answer(payload)
            except wire.Unreadable:
                self.refused += 1
                return None
            return reply if isinstance(reply, wire.Reply) else None
        conversation = self._conversations.get(asker)
        # Of one that was given up the rest may be under way.
        if conversation is not None and conversation.rank == rank:
            conversation.take(payload)
        return None

    def lose(self, ranks: Set[int]) -> None:
        """End the questions to ranks that cannot be reached any more."""
        for conversation in list(self._conversations.values()):
            if conversation.rank in ranks:
                conversation.end()

    def forget(self) -> None:
        """Forget everybody: there is no link any more."""
        self.lose(set(self.owners))
        self.link, self.owners = None, {}
        self.absent = self.unheard = frozenset()

    def publish(self, peer: bytes, topic: bytes, payload: bytes) -> bool:
        """Send the observer of another host a publication; one that does not read loses it."""
        return self._send(peer, PUBLICATION, topic, payload)

    def answer(self, asker: bytes, frames: tuple[bytes, ...]) -> bool | None:
        """Answer somebody at another host: True once sent, None where there is no room now, False without a link."""
        peer, name = _parts(asker)
        to = None if self.link is None else self.link.peers.get(peer)
        if to is None or not to.is_connected:
            return False
        return self._send(peer, ANSWER, name, *frames) or None

    def _send(self, peer: bytes, kind: bytes, *frames: bytes) -> bool:
        return self.link is not None and self.link.send(peer, kind, *frames)


_parts = lru_cache(1024)(askers.parts)
