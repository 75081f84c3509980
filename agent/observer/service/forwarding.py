"""Commands of onlookers to single ranks, through one socket, and the answers in place of ranks that do not answer.

Two requesters may use the same number for a command to the same rank: each command gets a number of the relay's own on
its way to the rank, and the requester's again on its way back.  Deadlines stay as they are.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import zmq

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.observer.hosts.elsewhere import Elsewhere, host_of
from ddptop.agent.observer.inspection import inspections
from ddptop.agent.observer.service.service import Service
from ddptop.agent.run.files.private import check_socket
from ddptop.agent.wire.vocabulary.refusals import Unheard

PATIENCE_S: Final = 2.0
"""Seconds that a rank has for a command without a deadline."""
INSPECT_S: Final = 0.5
"""Seconds that it has for an `Inspect`: one that does not answer is looked at from outside."""
_LONGEST_S: Final = 60.0
"""Seconds that a rank has at most, whatever the deadline."""
EACH: Final = 16_384
"""Commands of one requester that may be under way: four to each of 4,096 ranks."""
MOST: Final = 4 * EACH
"""Those of all requesters."""
_QUEUED: Final = 64
"""Commands that may be queued for one rank."""
_MOST_A_TURN: Final = 1_000

ELSEWHERE_S: Final = 1.0
"""Seconds more for a rank on another host."""
HOLDS_S: Final = 3.0
"""Seconds after a command for a hold in which its rank may come to it; the command is repeated as long as it has not.
"""
_HOLDING: Final = (wire.Hold, wire.Commit, wire.Keep, wire.Advance, wire.Resume, wire.Save)


Answer = Callable[[bytes, int, wire.Reply], object]
"""Sends the reply of a rank to a requester."""


@dataclass(frozen=True)
class _UnderWay:
    requester: bytes
    number: int
    """The requester's own number of the command."""
    rank: int
    give_up: float
    answer: Answer


class Forwarding:
    """The socket to all ranks, and the commands that they have not answered; for use from one thread."""

    def __init__(
        self,
        context: zmq.Context[Any],
        owner: int,
        service: Service,
        elsewhere: Elsewhere,
    ) -> None:
        """Connect to nobody yet; the service sends the replies to onlookers."""
        self.refused = 0
        """Messages of ranks that could not be read."""
        self._owner = owner
        self._answer: Answer = service.answer
        self._elsewhere = elsewhere
        self._peers: dict[int, tuple[str, bytes]] = {}
        """By rank, its address and the name of the connection to it."""
        self._under_way: dict[int, _UnderWay] = {}
        self._counts: dict[bytes, int] = {}
        """By requester, its commands that are under way; those of all requesters of another host are one's."""
        self._holds_until = 0.0
        self._due = math.inf
        """When the next of them has to be answered, or before that."""
        self._number = 0
        self._connections = 0
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.maxmsgsize = wire.MAX_MESSAGE_BYTES
        self.socket.sndhwm = _QUEUED
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)

    def connect(self, rank: int, address: str) -> None:
        """Connect to a rank, or anew where its process is another: commands to the former one are not for this one.

        Raises:
            RunDirError: its socket belongs to another user, or is open to others.
            zmq.ZMQError: there cannot be a socket.
        """
        check_socket(address, self._owner)
        if (known := self._peers.pop(rank, None)) is not None:
            self.socket.disconnect(known[0])
        # ZeroMQ aborts the process where a name is used again before the former connection of that name is gone.
        self._connections += 1
        # It makes up names that begin with a zero byte.
        name = b"rank-%d-%d" % (rank, self._connections)
        self.socket.setsockopt(zmq.CONNECT_ROUTING_ID, name)
        self.socket.connect(address)
        self._peers[rank] = address, name

    def lose(self, rank: int) -> None:
        """Answer in place of a rank whose process is gone, until there is another."""
        if (known := self._peers.pop(rank, None)) is not None:
            self.socket.disconnect(known[0])
        self._answer_for([each for each in self._under_way.items() if each[1].rank == rank])

    def forward(self, requester: bytes, rank: int, command: wire.Command, answer: Answer | None = None) -> None:
        """Pass a command on to a rank; the requester gets one reply, whatever becomes of the rank.

        Args:
            requester: the onlooker, or what else stands for whoever asks.
            rank: of the run.
            command: its number is the requester's own; a `ReadLog` is for the observer of a rank on another host.
            answer: takes the reply, perhaps at once, instead of what sends replies to onlookers.
        """
        answer = answer or self._answer
        who = host_of(requester)
        if isinstance(command, _HOLDING):
            self._holds_until = time.monotonic() + HOLDS_S
        if len(self._under_way) >= MOST or self._counts.get(who, 0) >= EACH:
            answer(requester, rank, wire.Reply(command.id, False, "too many commands wait; ask again"))
            return
        self._number += 1
        numbered, is_sent = msgspec.structs.replace(command, id=self._number), False
        if isinstance(numbered, wire.ReadLog):
            is_sent = self._elsewhere.forward_to_host(rank, numbered)
        elif rank not in self._peers:
            is_sent = self._elsewhere.forward(rank, numbered)
        elif self.is_there(rank):
            # It fails where the rank reads nothing, so that the queue is full.
            with contextlib.suppress(zmq.ZMQError):
                self.socket.send_multipart([self._peers[rank][1], wire.encode(numbered)], zmq.NOBLOCK)
                is_sent = True
        if not is_sent:
            answer(requester, rank, silence(command.id, rank))
            return
        self._counts[who] = self._counts.get(who, 0) + 1
        give_up = time.monotonic() + self._patience_s(rank, command)
        self._under_way[self._number] = _UnderWay(requester, command.id, rank, give_up, answer)
        self._due = min(self._due, give_up)

    @property
    def is_holding(self) -> bool:
        """True while a rank may come to a hold, or leave one: what it says of that is awaited."""
        return time.monotonic() < self._holds_until

    def _patience_s(self, rank: int, command: wire.Command) -> float:
        if rank in self._peers:
            return patience_s(command)
        if isinstance(command, wire.Inspect):
            # The observer there looks at the process from outside where the rank does not answer.
            return ELSEWHERE_S + (inspections.NATIVE_S if command.native else inspections.ANSWER_S)
        return ELSEWHERE_S + patience_s(command)

    def is_there(self, rank: int) -> bool:
        """Say whether a rank was found and has not ended; one on another host, whether that is heard, too."""
        if rank not in self._peers and self._elsewhere.has(rank):
            return self._elsewhere.is_there(rank)
        peer = self._peers.get(rank)
        # A rank that ends removes the files of its sockets.
        return peer is not None and os.path.lexists(peer[0].removeprefix("ipc://"))

    def is_elsewhere(self, rank: int) -> bool:
        """Say whether a rank is on another host."""
        return rank not in self._peers and self._elsewhere.has(rank)

    def take(self) -> None:
        """Pass on the replies that have arrived, and answer in place of ranks on hosts that are not heard any more."""
        replies, lost = self._elsewhere.take_replies()
        for rank, answer in replies:
            command = self._under_way.get(answer.id)
            if command is not None and command.rank == rank and rank not in self._peers:
                self._end(command, answer)
        if lost := lost - self._peers.keys():
            self._answer_for([each for each in self._under_way.items() if each[1].rank in lost])
        with contextlib.suppress(zmq.Again):
            for _ in range(_MOST_A_TURN):
                name, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
                try:
                    (payload,) = frames
                    reply = wire.read_answer(payload)
                except (ValueError, wire.Unreadable):
                    self.refused += 1
                    continue
                if not isinstance(reply, wire.Reply):
                    self.refused += 1
                    continue
                command = self._under_way.get(reply.id)
                # Of a rank that answers late nobody waits for the answer; none answers for another one.
                if command is not None and name == self._peers.get(command.rank, ("", b""))[1]:
                    self._end(command, reply)

    def _end(self, command: _UnderWay, reply: wire.Reply) -> None:
        self._remove(reply.id)
        command.answer(command.requester, command.rank, msgspec.structs.replace(reply, id=command.number))

    def expire(self) -> None:
        """Answer in place of the ranks that had to answer by now."""
        now = time.monotonic()
        if now > self._due:
            self._answer_for([each for each in self._under_way.items() if now > each[1].give_up])
            self._due = min((each.give_up for each in self._under_way.values()), default=math.inf)

    def _remove(self, number: int) -> None:
        who = host_of(self._under_way.pop(number).requester)
        self._counts[who] -= 1
        if not self._counts[who]:
            del self._counts[who]

    def _answer_for(self, unanswered: list[tuple[int, _UnderWay]]) -> None:
        for number, command in unanswered:
            self._remove(number)
            command.answer(command.requester, command.rank, silence(command.number, command.rank))

    @property
    def pause_s(self) -> float | None:
        """Seconds to wait before the next `expire`; None where nothing is under way."""
        if not self._under_way:
            return None
        return max(0.0, self._due - time.monotonic())

    def close(self) -> None:
        """Close the socket."""
        self.socket.close(linger=0)


def silence(number: int, rank: int) -> wire.Reply:
    """Return the reply in place of a rank that does not answer."""
    return wire.Reply(number, False, f"rank {rank} does not answer", refusal=Unheard.kind)


def patience_s(command: wire.Command) -> float:
    """Return the seconds that a rank has for a command."""
    if isinstance(command, wire.Inspect):
        return INSPECT_S
    if not isinstance(command, wire.Expiring) or command.until_ns is None:
        return PATIENCE_S
    return min(_LONGEST_S, max(0.0, (command.until_ns - deadline.now_ns()) / 1e9))
