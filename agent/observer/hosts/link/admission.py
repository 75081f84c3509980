"""Who may connect to a head: the holder of the run's key, and nobody else.

ZeroMQ asks for each connection by ZAP (https://rfc.zeromq.org/spec/27), over a socket of this process; where nobody
answers, nobody comes in.  What it tells of connections that failed is counted here.
"""

from __future__ import annotations

import contextlib
import hmac
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import zmq
from zmq.utils import z85

from ddptop.agent.observer.hosts.link.listening import Port

SPARE: Final = 200
"""Connections at most that are no branch's: those whose handshake is not finished, and strangers."""
DOMAIN: Final = b"ddptop"
_MOST_A_TURN: Final = 5_000
_YOUNG_S: Final = 4.0
"""Seconds after which ZeroMQ has ended each connection whose handshake is not finished."""
_WATCHED: Final = (
    zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Admission:
    """Answers of ZAP, and the count of connections; for use from one thread."""

    def __init__(
        self, context: zmq.Context[Any], client: str, refused: Counter[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Admit the holder of this public key, in Z85.

        Args:
            context: of the socket that listens, and of no other that listens.
            client: the key.
            refused: takes the count of refused connections, as `key` and `handshake`, and of times that there were
                too many, as `crowd`.
            clock: in seconds.

        Raises:
            zmq.ZMQError: the context has such an answer already.
        """
        self._client = z85.decode(client)
        self._refused = refused
        self._clock = clock
        self._open: dict[int, float] = {}
        """File descriptors of all connections, admitted ones and others, and the time at which each began."""
        self._accepted = self._admitted = 0
        self.last_stranger = ""
        """Address of the last one with a wrong key."""
        self._zap = context.socket(zmq.REP)
        self._zap.linger = 0
        self._monitor: zmq.Socket[Any] | None = None
        try:
            self._zap.bind("inproc://zeromq.zap.01")
        except zmq.ZMQError:
            self._zap.close()
            raise

    def guard(self, router: zmq.Socket[Any]) -> None:
        """Watch the connections of a socket that is not bound yet."""
        router.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self._monitor = watch(router, _WATCHED)

    @property
    def sockets(self) -> list[zmq.Socket[Any]]:
        """What becomes readable when there is something to do."""
        return [self._zap, *([self._monitor] if self._monitor is not None else [])]

    def turn(self, port: Port, branches: int) -> None:
        """Answer and count; `branches` are the connections that belong to known hosts."""
        with contextlib.suppress(zmq.Again):
            for _ in range(_MOST_A_TURN):
                # A REP socket takes the next question only after its answer.
                self._zap.send_multipart(self._answer(self._zap.recv_multipart(zmq.NOBLOCK)))
        if self._monitor is not None:
            for event, value in events(self._monitor, _MOST_A_TURN):
                self._note(event, value)
        self._count()
        # Of those that it lets in no more than half remain unfinished when it opens again.
        most = branches + (SPARE if port.is_open else SPARE // 2)
        if port.is_open and len(self._open) > most:
            self._refused["crowd"] += 1
            port.shut()
        elif not port.is_open and len(self._open) <= most:
            port.open()

    def _note(self, event: int, value: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self._accepted += 1
            self._open[value] = self._clock()
        elif event == zmq.EVENT_DISCONNECTED:
            self._open.pop(value, None)
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._admitted += 1
        else:
            self._refused["key"] += 1

    def _count(self) -> None:
        # ZeroMQ tells neither which connection was admitted, nor of one that ends with its first bytes more than that
        # it has ended: refused are those that are neither admitted nor possibly still in their handshake.
        left = self._accepted - self._admitted - self._refused["key"] - self._refused["handshake"]
        if left:
            since = self._clock() - _YOUNG_S
            left -= sum(began > since for began in self._open.values())
            self._refused["handshake"] += max(0, left)

    def _answer(self, question: list[bytes]) -> list[bytes]:
        number = question[1] if len(question) > 1 else b""
        match question:
            case [b"1.0", _, domain, address, _, b"CURVE", key] if domain == DOMAIN:
                if hmac.compare_digest(key, self._client):
                    return [b"1.0", number, b"200", b"OK", b"", b""]
                self.last_stranger = address.decode("ascii", "replace")
        return [b"1.0", number, b"400", b"not the key of this run", b"", b""]

    @property
    def connections(self) -> int:
        """Connections that are open, of anybody."""
        return len(self._open)

    def close(self) -> None:
        """Close the sockets; those that were guarded are closed before."""
        self._zap.close()
        if self._monitor is not None:
            self._monitor.close(linger=0)


def watch(socket: zmq.Socket[Any], wanted: int) -> zmq.Socket[Any]:
    """Return a socket that tells these events of another one."""
    address = f"inproc://link-{id(socket)}"
    socket.monitor(address, wanted)
    monitor: zmq.Socket[Any] = socket.context.socket(zmq.PAIR)
    monitor.linger = 0
    # Where its queue is full, ZeroMQ's thread blocks, and with it all sockets of the context.
    monitor.rcvhwm = 0
    monitor.connect(address)
    return monitor


def events(monitor: zmq.Socket[Any], most: int) -> list[tuple[int, int]]:
    """Return the events that have come, at most so many, each with its value (see zmq_socket_monitor(3))."""
    found: list[tuple[int, int]] = []
    with contextlib.suppress(zmq.Again):
        while len(found) < most:
            event, _ = monitor.recv_multipart(zmq.NOBLOCK)
            found.append((int.from_bytes(event[:2], sys.byteorder), int.from_bytes(event[2:6], sys.byteorder)))
    return found
