"""What both sides of a link do: read, send as far as there is room, ping, notice silence.

No call blocks. Publications are dropped where the other side does not read; everything else waits, up to a bound.
"""

from __future__ import annotations

import abc
import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import zmq

from ddptop.agent import wire
from ddptop.agent.observer.hosts.link import frames
from ddptop.agent.observer.hosts.link.peer import PATIENCE_S, SILENT_S, WINDOW, Peer

PING_S: Final = 1.0
"""Seconds between two looks at all that is due."""
HEARTBEAT_S: Final = 1.0
BROKEN_S: Final = 5.0
"""Seconds without an answer of the other side's ZeroMQ after which a connection is made anew."""
HANDSHAKE_S: Final = 3.0
"""Seconds in which a connection has to say who it is."""
LINGER_MS: Final = 1_000
"""Time that what was sent last has to leave when a link is closed."""
_UNREAD: Final = 1_000
_MOST_A_TURN: Final = 2_000
_MOST_BYTES_A_TURN: Final = 8 << 20
_REST_S: Final = 0.02
"""Seconds without reading after a turn with so many messages: who floods takes at most a part of a core."""
SOONEST_S: Final = 0.002
_LATEST_S: Final = 0.1
_TOLD_AT: Final = WINDOW // 4
_MOST_SAID: Final = 100
_UNCOUNTED: Final = frozenset((frames.HELLO, frames.REFUSED, frames.PING, frames.PONG))
"""Kinds whose bytes neither side counts: they have to pass where there is no room for others."""


class Arrived(NamedTuple):
    """A message of a peer: its kind, and the frames after it."""

    peer: bytes
    kind: bytes
    frames: list[bytes]


class Changed(NamedTuple):
    """A peer came, went, fell silent, was heard again or has greeted anew."""

    peer: bytes


class Said(NamedTuple):
    """An event for all who look on."""

    text: str
    level: str = "info"
    rank: int | None = None


News = Arrived | Changed | Said


@dataclass(frozen=True)
class Clocks:
    """The clocks of this host; a test has others."""

    now: Callable[[], float] = time.monotonic
    wall_ns: Callable[[], int] = time.time_ns


CLOCKS: Final = Clocks()


class Side(abc.ABC):
    """The part of a link that head and branch have in common."""

    def __init__(self, hello: wire.HostHello, clocks: Clocks) -> None:
        self.peers: dict[bytes, Peer] = {}
        """The other sides by name, from their first hello on; one whose connection has ended stays."""
        self.refused: Counter[str] = Counter()
        """What was refused: `key`, `handshake`, `crowd` (connections), `kind`, `frames`, `size`, `hello`, `run`,
        `unknown` (no hello before), `pong`, `direction`."""
        self._hello = hello
        self._news: list[News] = []
        self._clock = clocks.now
        self._wall_ns = clocks.wall_ns
        self._due = 0.0
        self._read_at = 0.0
        self._retry_at = math.inf
        self._retry_s = SOONEST_S
        self._said: set[str] = set()

    @property
    @abc.abstractmethod
    def sockets(self) -> list[zmq.Socket[Any]]:
        """What to wait for now; it may be others at the next time."""

    @property
    def pause_s(self) -> float:
        """Seconds until the next turn is due, if nothing arrives."""
        now = self._clock()
        if self._news:
            return 0.0
        due = min(self._due, self._retry_at, self._read_at if self._read_at > now else math.inf)
        return max(0.0, due - now)

    def turn(self) -> list[News]:
        """Take in what has arrived, send what waits, ping, and notice silence; return what is new."""
        self._look()
        if self._clock() >= self._read_at:
            self._receive()
        if self._clock() >= self._retry_at:
            self._send_more()
        if self._clock() >= self._due:
            self._each_second()
        news, self._news = self._news, []
        return news

    def send(self, peer: bytes, kind: bytes, *content: bytes) -> bool:
        """Send a message, now or when there is room; return False where it is dropped, as all is to a silent host."""
        to = self.peers.get(peer)
        if to is None or not to.is_linked:
            return False
        message = (kind, *content)
        size = sum(map(len, content))
        if not to.waiting and to.fits(size):
            sent = self._pass(to, message, size)
            if sent is not None:
                return sent
        if kind == frames.PUBLICATION:
            to.dropped += 1
            return False
        return self._put(to, message, size)

    def _put(self, to: Peer, message: tuple[bytes, ...], size: int) -> bool:
        now = self._clock()
        if not to.put(message, size, now):
            return False
        if self._retry_at == math.inf:
            self._retry_s = SOONEST_S
            self._retry_at = now + SOONEST_S
        return True

    def _pass(self, to: Peer, message: tuple[bytes, ...], size: int) -> bool | None:
        """Return True once sent, None where there is no room now, False where the connection has ended."""
        try:
            self._transmit(to, message)
        except zmq.Again:
            return None
        except zmq.ZMQError:
            self._lose(to)
            return False
        to.sent += size
        return True

    def _send_more(self) -> None:
        now, moved, left = self._clock(), False, False
        for to in tuple(self.peers.values()):
            while to.waiting:
                message = to.waiting[0]
                size = sum(map(len, message[1:]))
                if not to.fits(size) or not self._pass(to, message, size):
                    break
                to.waiting.popleft()
                to.waiting_bytes -= size
                to.moved_at, moved = now, True
            if to.waiting and now - to.moved_at > PATIENCE_S:
                to.dropped += len(to.waiting)
                to.waiting.clear()
                to.waiting_bytes = 0
            left = left or bool(to.waiting)
        self._retry_s = SOONEST_S if moved else min(_LATEST_S, 2 * self._retry_s)
        self._retry_at = now + self._retry_s if left else math.inf

    def _receive(self) -> None:
        with contextlib.suppress(zmq.Again):
            size = 0
            for _ in range(_MOST_A_TURN):
                name, message = self._read()
                size += sum(map(len, message))
                self._take(name, message)
                if size > _MOST_BYTES_A_TURN:
                    break
            self._read_at = self._clock() + _REST_S
        for peer in tuple(self.peers.values()):
            if peer.received - peer.told >= _TOLD_AT:
                self._ping(peer)

    def _take(self, name: bytes, message: list[bytes]) -> None:
        kind, content = message[0] if message else b"", message[1:]
        peer = self.peers.get(name)
        if peer is not None and kind not in _UNCOUNTED:
            peer.received += sum(map(len, content))
        if (fault := frames.fault(kind, content)) is not None:
            self._refuse(fault, peer)
        elif kind == frames.HELLO:
            self._meet(name, content[0])
        elif kind == frames.REFUSED:
            self._turned_away(content[0])
        elif peer is None or not peer.is_connected:
            self._refuse("unknown", peer)
        else:
            self._heard(peer)
            if kind == frames.PING:
                self._answer_ping(peer, content[0])
            elif kind == frames.PONG:
                self._take_pong(peer, content[0])
            else:
                self._news.append(Arrived(name, kind, content))

    def _refuse(self, why: str, peer: Peer | None = None) -> None:
        self.refused[why] += 1
        if peer is not None:
            peer.refused += 1

    def _heard(self, peer: Peer) -> None:
        peer.heard_at, peer.heard_at_ns = self._clock(), self._wall_ns()
        if peer.is_silent:
            peer.is_silent = False
            self._changed(peer.name)

    def _answer_ping(self, peer: Peer, content: bytes) -> None:
        at_ns, received = frames.PINGED.unpack(content)
        if not peer.acknowledge(received):
            self._refuse("pong", peer)
        pong = frames.PONGED.pack(at_ns, self._wall_ns(), peer.received)
        if self._pass(peer, (frames.PONG, pong), 0):
            peer.told = peer.received

    def _take_pong(self, peer: Peer, content: bytes) -> None:
        at_ns, other_ns, received = frames.PONGED.unpack(content)
        if not (peer.acknowledge(received) and peer.pings.pong(at_ns, other_ns, self._clock())):
            self._refuse("pong", peer)

    def _ping(self, peer: Peer) -> None:
        ping = frames.PINGED.pack(peer.pings.ping(self._clock(), self._wall_ns()), peer.received)
        if self._pass(peer, (frames.PING, ping), 0):
            peer.told = peer.received

    def _each_second(self) -> None:
        now = self._clock()
        self._due = now + PING_S
        for peer in tuple(self.peers.values()):
            if peer.is_connected and self._is_to_ping(peer):
                self._ping(peer)
            if not peer.is_silent:
                if now - peer.heard_at >= SILENT_S:
                    peer.is_silent = True
                    self._changed(peer.name)
                else:
                    self._due = min(self._due, peer.heard_at + SILENT_S)

    def _greet(self, peer: Peer) -> None:
        """Tell who this host is, before all that waits."""
        hello = self._introduction(peer.session)
        if self._pass(peer, (frames.HELLO, hello), 0) is None:
            peer.waiting.appendleft((frames.HELLO, hello))
            peer.waiting_bytes += len(hello)
            peer.moved_at = self._clock()
            self._retry_at = min(self._retry_at, peer.moved_at + SOONEST_S)

    def _introduction(self, session: int) -> bytes:
        return wire.encode(msgspec.structs.replace(self._hello, session=session, at_ns=self._wall_ns()))

    def _lose(self, peer: Peer) -> None:
        if peer.is_connected:
            peer.end(self._clock())
            self._changed(peer.name)

    def _say_once(self, text: str) -> None:
        if text not in self._said and len(self._said) < _MOST_SAID:
            self._said.add(text)
            self._news.append(Said(text, "warning"))

    def _changed(self, name: bytes) -> None:
        self._news.append(Changed(name))

    def _is_to_ping(self, peer: Peer) -> bool:
        return True

    def _turned_away(self, text: bytes) -> None:
        self._refuse("direction")

    @abc.abstractmethod
    def update(self, hello: wire.HostHello) -> None:
        """Tell the other side what has changed on this host."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the sockets, after what was sent has left or a second is over."""

    @abc.abstractmethod
    def _look(self) -> None:
        """Look after the connections."""

    @abc.abstractmethod
    def _read(self) -> tuple[bytes, list[bytes]]:
        """Return the next message and the name of its sender; raises `zmq.Again` where there is none."""

    @abc.abstractmethod
    def _transmit(self, to: Peer, message: tuple[bytes, ...]) -> None:
        """Send; raises `zmq.Again` where there is no room, `zmq.ZMQError` where there is no connection."""

    @abc.abstractmethod
    def _meet(self, name: bytes, payload: bytes) -> None:
        """Take in a hello."""


def prepare(socket: zmq.Socket[Any]) -> None:
    """Set what both sides want of their socket, before it binds or connects."""
    socket.linger = LINGER_MS
    socket.maxmsgsize = wire.MAX_MESSAGE_BYTES
    socket.sndhwm = socket.rcvhwm = _UNREAD
    for option, seconds in (
        (zmq.HANDSHAKE_IVL, HANDSHAKE_S),
        (zmq.HEARTBEAT_IVL, HEARTBEAT_S),
        (zmq.HEARTBEAT_TIMEOUT, BROKEN_S),
        (zmq.HEARTBEAT_TTL, BROKEN_S),
    ):
        socket.setsockopt(option, int(1000 * seconds))
    for option, value in (
        (zmq.TCP_KEEPALIVE, 1), (zmq.TCP_KEEPALIVE_IDLE, 10), (zmq.TCP_KEEPALIVE_INTVL, 5), (zmq.TCP_KEEPALIVE_CNT, 3)
    ):  # fmt: skip
        socket.setsockopt(option, value)
