"""The answers of a rank to its peers, sent only as fast as each peer reads.

A socket queues messages for a peer that does not read, in the memory of the process that trains. So its queue is
short, and further pieces of an answer about the history are made only when there is room for them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import zmq

from ddptop.agent import wire

QUEUED: Final = 4
"""Messages in the socket's queue for one peer at most."""
MOST: Final = 64
"""Answers in progress at a time; further requests are refused."""
MOST_REPLIES: Final = 128
"""Replies that wait for one peer at most; further ones are dropped, because the peer does not read."""
PATIENCE_S: Final = 60.0
"""Seconds without a sent message after which an answer is dropped."""
SOONEST_S: Final = 0.002
LATEST_S: Final = 0.1
"""Shortest and longest pause between two attempts to send; it doubles while the queue has no room."""


@dataclass(slots=True)
class _UnderWay:
    pieces: Iterator[bytes]
    reply: bytes
    """The last message of the answer."""
    piece: bytes | None
    """A message that was made and not sent."""
    give_up: float


@dataclass(slots=True)
class _Unsent:
    """Replies for which there was no room."""

    give_up: float
    replies: deque[bytes] = field(default_factory=deque)


class Answers:
    """The unsent messages of a ROUTER socket: replies, and one answer about the history at a time for each peer."""

    def __init__(self, socket: zmq.Socket[bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._socket = socket
        self._clock = clock
        self._under_way: dict[bytes, _UnderWay] = {}
        self._unsent: dict[bytes, _Unsent] = {}
        self._pause_s = SOONEST_S

    def begin(self, peer: bytes, pieces: Iterator[bytes], reply: wire.Reply) -> bool:
        """Begin to send an answer; return False where there are too many, or one to this peer already."""
        if peer in self._under_way or len(self._under_way) >= MOST:
            return False
        self._under_way[peer] = _UnderWay(pieces, wire.encode(reply), None, self._clock() + PATIENCE_S)
        self._advance(peer)
        self._pause_s = SOONEST_S
        return True

    def reply(self, peer: bytes, payload: bytes) -> None:
        """Send a reply, at once or when there is room, in the order of the commands.

        The reply is dropped where the peer has left or has read nothing for a minute, and beyond `MOST_REPLIES` replies
        or `MOST` peers.
        """
        unsent = self._unsent.get(peer)
        if unsent is None:
            if send(self._socket, peer, payload) is not None or len(self._unsent) >= MOST:
                return
            unsent = self._unsent[peer] = _Unsent(self._clock() + PATIENCE_S)
            self._pause_s = SOONEST_S
        if len(unsent.replies) < MOST_REPLIES:
            unsent.replies.append(payload)

    def send_more(self) -> None:
        """Send the messages for which there is room now."""
        if self._busy:
            moved = [self._send_replies(peer) for peer in tuple(self._unsent)]
            moved += [self._advance(peer) for peer in tuple(self._under_way)]
            self._pause_s = SOONEST_S if any(moved) else min(LATEST_S, 2 * self._pause_s)

    @property
    def pause_s(self) -> float | None:
        """Seconds to wait before the next `send_more`; None where nothing is unsent."""
        return self._pause_s if self._busy else None

    @property
    def _busy(self) -> bool:
        return bool(self._under_way or self._unsent)

    def _send_replies(self, peer: bytes) -> bool:
        """Send one peer the replies for which there is room; return whether any was sent."""
        unsent, moved = self._unsent[peer], False
        while unsent.replies:
            sent = send(self._socket, peer, unsent.replies[0])
            if sent is None and self._clock() <= unsent.give_up:
                return moved
            if not sent:
                break
            unsent.replies.popleft()
            unsent.give_up, moved = self._clock() + PATIENCE_S, True
        del self._unsent[peer]
        return moved

    def _advance(self, peer: bytes) -> bool:
        """Send one peer the pieces for which there is room; return whether any was sent."""
        answer = self._under_way[peer]
        moved = False
        while True:
            if answer.piece is None:
                answer.piece = next(answer.pieces, answer.reply)
            sent = send(self._socket, peer, answer.piece)
            if sent is None:
                if self._clock() > answer.give_up:
                    del self._under_way[peer]
                return moved
            if not sent or answer.piece is answer.reply:
                del self._under_way[peer]
                return True
            answer.piece, answer.give_up, moved = None, self._clock() + PATIENCE_S, True


def send(socket: zmq.Socket[bytes], peer: bytes, payload: bytes) -> bool | None:
    """Send to a peer; return True once queued, None where there is no room now, False where the peer has left."""
    try:
        socket.send_multipart([peer, payload], zmq.NOBLOCK)
    except zmq.Again:
        return None
    except zmq.ZMQError:
        return False
    return True
