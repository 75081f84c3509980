"""The side of a link that connects: the observer on any host but that of rank 0."""

from __future__ import annotations

import contextlib
import secrets
from typing import Any, Final

import zmq

from ddptop.agent import wire
from ddptop.agent.control.listening import events, watch
from ddptop.agent.observer.hosts.link import frames
from ddptop.agent.observer.hosts.link.peer import Peer
from ddptop.agent.observer.hosts.link.side import CLOCKS, LINGER_MS, SOONEST_S, Clocks, Side, prepare
from ddptop.agent.run.hosts import Listen
from ddptop.agent.text import clean_line

HEAD: Final = b"head"
"""Name of the only peer."""
ANSWER_S: Final = 3.0
"""Seconds in which the head has to answer at an address before the next one is tried."""
LOST_S: Final = 8.0
"""Seconds after which a head that was heard is looked for at its other addresses: ZeroMQ connects again before."""
REFUSED_S: Final = 30.0
"""Seconds without an attempt after the head has refused this host."""
_OWN_PING_S: Final = 5.0
"""Seconds between two pings by a branch: the head pings as well, which is a sign of life."""
_FIRST_PINGS: Final = 3
_CONNECT_S: Final = 2.0
_AGAIN_MS: Final = (100, 1_000)
_MOST_EVENTS: Final = 1_000


class Branch(Side):
    """The DEALER; for use from one thread."""

    def __init__(
        self,
        context: zmq.Context[Any],
        listen: Listen,
        hello: wire.HostHello,
        clocks: Clocks = CLOCKS,
    ) -> None:
        """Begin to connect.

        Args:
            context: of the socket.
            listen: where the head is, and the keys; its addresses are tried in turn.
            hello: this host.
            clocks: of this host.

        Raises:
            zmq.ZMQError: there cannot be a socket, or a key is none.
            ValueError: there is no address.
        """
        super().__init__(hello, clocks)
        if not listen.addresses:
            raise ValueError("no address of the head")
        self.listen = listen
        """Where it looks for the head."""
        self._context = context
        # With it the head knows this host again after another connection; others cannot guess it.
        self._identity = b"b" + secrets.token_bytes(15)
        self._session = 0
        """Number of the newest connection."""
        self._owes_hello = False
        self._tried = -1
        self._address: str | None = None
        self._next_at = 0.0
        self._pinged = 0
        self._pinged_at = 0.0
        self._socket: zmq.Socket[Any] = context.socket(zmq.DEALER)
        try:
            prepare(self._socket)
            self._socket.setsockopt(zmq.ROUTING_ID, self._identity)
            self._socket.setsockopt(zmq.IPV6, int(any("[" in address for address in listen.addresses)))
            # Nothing waits for a connection that is not there: the first message of each is the hello.
            self._socket.setsockopt(zmq.IMMEDIATE, 1)
            self._socket.setsockopt(zmq.CONNECT_TIMEOUT, int(1000 * _CONNECT_S))
            self._socket.setsockopt(zmq.RECONNECT_IVL, _AGAIN_MS[0])
            self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, _AGAIN_MS[1])
            self._socket.curve_serverkey = listen.server.encode()
            self._socket.curve_publickey = listen.client_public.encode()
            self._socket.curve_secretkey = listen.client_secret.encode()
            self._monitor = watch(
                self._socket,
                zmq.EVENT_DISCONNECTED
                | zmq.EVENT_HANDSHAKE_SUCCEEDED
                | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
                | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
                | zmq.EVENT_HANDSHAKE_FAILED_AUTH,
            )
        except BaseException:
            self._socket.close(linger=0)
            raise

    @property
    def head(self) -> Peer | None:
        """The head, once it has greeted."""
        return self.peers.get(HEAD)

    @property
    def is_linked(self) -> bool:
        """Whether the head is there."""
        return (head := self.head) is not None and head.is_linked

    @property
    def sockets(self) -> list[zmq.Socket[Any]]:
        """What to wait for now; it may be others at the next time."""
        reads = [self._socket] if self._clock() >= self._read_at else []
        return [*reads, self._monitor]

    @property
    def pause_s(self) -> float:
        """Seconds until the next turn is due, if nothing arrives."""
        return max(0.0, min(super().pause_s, self._next_at - self._clock()))

    def update(self, hello: wire.HostHello) -> None:
        """Tell the head what has changed on this host."""
        self._hello = hello
        if (head := self.head) is not None and head.is_connected:
            self._greet(head)

    def close(self) -> None:
        """Close the sockets; what was sent leaves within a second, or is lost."""
        self._socket.monitor(None, 0)  # None takes the monitor away
        self._monitor.close(linger=0)
        self._socket.close(linger=LINGER_MS if self.is_linked else 0)

    def _look(self) -> None:
        for event, *_ in events(self._monitor, _MOST_EVENTS):
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._begin()
            elif event == zmq.EVENT_DISCONNECTED:
                if self.head is not None:
                    self._lose(self.head)
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self.refused["key"] += 1
                self._say_once(f"the head on {self.listen.host} does not know the key that this host has for the run")
            else:
                self.refused["handshake"] += 1
        now = self._clock()
        if self.is_linked:
            self._next_at = now + LOST_S
        elif now >= self._next_at:
            self._try_next(now)
        if self._owes_hello:
            self._introduce()

    def _try_next(self, now: float) -> None:
        self._leave()
        self._tried += 1
        self._next_at = now + ANSWER_S
        address = self.listen.addresses[self._tried % len(self.listen.addresses)]
        try:
            self._socket.connect(address)
        except zmq.ZMQError as problem:
            # A name that cannot be resolved, or no address at all.
            self._say_once(f"the head at {address} cannot be reached: {problem.strerror}")
            return
        self._address = address

    def _leave(self) -> None:
        if self._address is not None:
            # ZeroMQ has given up an address itself where it met no head there.
            with contextlib.suppress(zmq.ZMQError):
                self._socket.disconnect(self._address)
            self._address = None
        self._owes_hello = False
        if self.head is not None:
            self._lose(self.head)

    def _begin(self) -> None:
        """Greet the head over a connection that has just been made."""
        if self.head is not None:
            self._lose(self.head)
        self._session += 1
        self._pinged = 0
        self._owes_hello = True

    def _introduce(self) -> None:
        try:
            self._socket.send_multipart((frames.HELLO, self._introduction(self._session)), zmq.NOBLOCK)
            self._owes_hello = False
        except zmq.ZMQError:
            # ZeroMQ's thread has told of the connection before it hands it over.
            self._retry_at = min(self._retry_at, self._clock() + SOONEST_S)

    def _read(self) -> tuple[bytes, list[bytes]]:
        return HEAD, self._socket.recv_multipart(zmq.NOBLOCK)

    def _transmit(self, to: Peer, message: tuple[bytes, ...]) -> None:
        self._socket.send_multipart(message, zmq.NOBLOCK)

    def _meet(self, name: bytes, payload: bytes) -> None:
        try:
            hello = wire.read_host_hello(payload)
        except wire.Unreadable:
            self._refuse("hello", self.head)
            return
        if hello.protocol != self._hello.protocol or hello.run_id != self._hello.run_id:
            self._refuse("run", self.head)
            what = f"run {hello.run}" if hello.run_id != self._hello.run_id else f"protocol {hello.protocol}"
            self._rest(f"{hello.host} is the head of {what}")
            return
        if hello.session != self._session:
            # Of a connection that has ended meanwhile.
            return
        head = self.peers.get(HEAD)
        if head is None:
            head = self.peers[HEAD] = Peer(HEAD, hello, self._clock(), self._wall_ns())
        head.hello = hello
        if not head.is_connected or head.session != self._session:
            head.begin(self._session, self._clock())
        head.heard_at, head.heard_at_ns = self._clock(), self._wall_ns()
        self._changed(HEAD)

    def _turned_away(self, text: bytes) -> None:
        self._refuse("run", self.head)
        self._rest(clean_line(text.decode("utf-8", "replace")))

    def _rest(self, why: str) -> None:
        self._say_once(f"the head on {self.listen.host} does not take this host into the run: {why}")
        self._leave()
        self._next_at = self._clock() + REFUSED_S

    def _is_to_ping(self, peer: Peer) -> bool:
        now = self._clock()
        if self._pinged >= _FIRST_PINGS and now - self._pinged_at < _OWN_PING_S:
            return False
        self._pinged += 1
        self._pinged_at = now
        return True
