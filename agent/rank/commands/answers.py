"""What a rank still has to send to those who asked it: only as fast as each of them reads.

A socket queues for a peer that does not read, in the memory of the process that trains. So little
may wait there, and the rest of an answer about its history is not even made before there is room.
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
"""Messages that wait in the socket for one peer at most."""
MOST: Final = 64
"""Answers under way at a time; who asks beyond that is refused."""
MOST_REPLIES: Final = 128
"""Replies that wait for one peer; what is beyond that is dropped, because it does not read."""
PATIENCE_S: Final = 60.0
"""An answer of which nothing was taken for so long is given up."""
SOONEST_S: Final = 0.002
LATEST_S: Final = 0.1
"""Between two looks whether there is room again: the longer, the longer there was none."""


@dataclass(slots=True)
class _UnderWay:
    pieces: Iterator[bytes]
    reply: bytes
    """Ends the answer."""
    piece: bytes | None
    """Made, and not taken yet."""
    give_up: float


@dataclass(slots=True)
class _Unsent:
    """Replies for which there was no room."""

    give_up: float
    replies: deque[bytes] = field(default_factory=deque)


class Answers:
    """What is under way on a ROUTER socket: replies, and of answers about the history one at a time for a peer."""

    def __init__(self, socket: zmq.Socket[bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._socket = socket
        self._clock = clock
        self._under_way: dict[bytes, _UnderWay] = {}
        self._unsent: dict[bytes, _Unsent] = {}
        self._pause_s = SOONEST_S

    def begin(self, peer: bytes, pieces: Iterator[bytes], reply: wire.Reply) -> bool:
        """Take in an answer and send what there is room for; False where there are too many."""
        if peer in self._under_way or len(self._under_way) >= MOST:
            return False
        self._under_way[peer] = _UnderWay(pieces, wire.encode(reply), None, self._clock() + PATIENCE_S)
        self._advance(peer)
        self._pause_s = SOONEST_S
        return True

    def reply(self, peer: bytes, payload: bytes) -> None:
        """Send a reply, at once or when there is room, in the order of the commands.

        It is dropped for a peer that has left or reads nothing for a minute, and beyond `MOST_REPLIES` or `MOST` peers.
        """
        unsent = self._unsent.get(peer)
        if unsent is None:
            if send(self._socket, peer, payload) is not None or len(self._unsent) >= MOST:
                return
            unsent = self._unsent[peer] = _Unsent(self._clock() + PATIENCE_S)
            self._pause_s = SOONEST_S
        if len(unsent.replies) < MOST_REPLIES:
            unsent.replies.append(payload)

    def go_on(self) -> None:
        """Send what there is room for by now."""
        if self._busy:
            moved = [self._send_replies(peer) for peer in tuple(self._unsent)]
            moved += [self._advance(peer) for peer in tuple(self._under_way)]
            self._pause_s = SOONEST_S if any(moved) else min(LATEST_S, 2 * self._pause_s)

    @property
    def pause_s(self) -> float | None:
        """How long to wait before there may be room again; None where nothing is under way."""
        return self._pause_s if self._busy else None

    @property
    def _busy(self) -> bool:
        return bool(self._under_way or self._unsent)

    def _send_replies(self, peer: bytes) -> bool:
        """Send one peer the replies that there is room for; return whether there was any."""
        unsent, moved = self._unsent[peer], False
        while unsent.replies:
            taken = send(self._socket, peer, unsent.replies[0])
            if taken is None and self._clock() <= unsent.give_up:
                return moved
            if not taken:
                break
            unsent.replies.popleft()
            unsent.give_up, moved = self._clock() + PATIENCE_S, True
        del self._unsent[peer]
        return moved

    def _advance(self, peer: bytes) -> bool:
        """Send one peer what there is room for; return whether anything was."""
        answer = self._under_way[peer]
        moved = False
        while True:
            if answer.piece is None:
                answer.piece = next(answer.pieces, answer.reply)
            taken = send(self._socket, peer, answer.piece)
            if taken is None:
                if self._clock() > answer.give_up:
                    del self._under_way[peer]
                return moved
            if not taken or answer.piece is answer.reply:
                del self._under_way[peer]
                return True
            answer.piece, answer.give_up, moved = None, self._clock() + PATIENCE_S, True


def send(socket: zmq.Socket[bytes], peer: bytes, payload: bytes) -> bool | None:
    """Send to a peer: True once it is on its way, None where there is no room now, False for a peer that has left."""
    try:
        socket.send_multipart([peer, payload], zmq.NOBLOCK)
    except zmq.Again:
        return None
    except zmq.ZMQError:
        return False
    return True
