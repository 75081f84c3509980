"""A socket that subscribes to the telemetry of several peers, with a bound on the size of their messages.

ZeroMQ closes a connection for good when a message above the bound arrives on it; the listener connects
again a second later, because later messages may be within the bound.  It belongs to one thread.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable
from typing import Any, Final

import zmq

from ddptop.agent import wire

AGAIN_S: Final = 1.0
"""Seconds after which the listener connects again where ZeroMQ has not."""


class Listener:
    """A SUB socket of bounded messages.

    It has no ZMTP heartbeats: a silent peer is noticed by its missing `Beat` messages, and the pings of 1,024
    connections took 2.5 % of a core.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        topics: Iterable[bytes],
        unread: int = wire.UNREAD,
    ) -> None:
        """Make the socket; it queues at most `unread` messages of each peer."""
        self.socket: zmq.Socket[bytes] = context.socket(zmq.SUB)
        self.socket.linger = 0
        self.socket.maxmsgsize = wire.MAX_MESSAGE_BYTES
        self.socket.rcvhwm = unread
        for topic in topics:
            self.socket.subscribe(topic)
        self._lost: dict[str, float] = {}
        """By address, the time at which a connection ended that has not been made again."""
        self._addresses: set[str] = set()
        self._breaks = 0
        self._monitor = watch(self.socket, zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED)

    def connect(self, address: str) -> None:
        """Subscribe to a peer; raises `zmq.ZMQError` where the address is invalid."""
        self.socket.connect(address)
        self._addresses.add(address)

    def disconnect(self, address: str) -> None:
        """End the subscription to a peer."""
        self._addresses.discard(address)
        self.socket.disconnect(address)

    @property
    def breaks(self) -> int:
        """How many connections have ended by now without `disconnect`."""
        self._note_connections()
        return self._breaks

    def mend(self) -> None:
        """Connect again to the peers whose connection ZeroMQ has closed."""
        self._note_connections()
        now = time.monotonic()
        for address in [address for address, since in self._lost.items() if now - since >= AGAIN_S]:
            del self._lost[address]
            if address in self._addresses:
                self.socket.disconnect(address)
                self.socket.connect(address)

    def _note_connections(self) -> None:
        """Take in which connections were made and which have ended."""
        for event, _, address in events(self._monitor, sys.maxsize):
            if event == zmq.EVENT_CONNECTED:
                self._lost.pop(address, None)
            elif address in self._addresses:
                self._breaks += 1
                self._lost[address] = time.monotonic()

    def close(self) -> None:
        """Close the sockets."""
        self.socket.monitor(None, 0)  # None takes the monitor away
        self._monitor.close(linger=0)
        self.socket.close(linger=0)


def watch(watched: zmq.Socket[Any], wanted: int) -> zmq.Socket[Any]:
    """Return a socket that tells these events of another one."""
    address = f"inproc://watch-{id(watched)}"
    watched.monitor(address, wanted)
    monitor: zmq.Socket[Any] = watched.context.socket(zmq.PAIR)
    monitor.linger = 0
    # Where its queue is full, ZeroMQ's thread blocks, and with it all sockets of the context.
    monitor.rcvhwm = 0
    monitor.connect(address)
    return monitor


def events(monitor: zmq.Socket[Any], most: int) -> list[tuple[int, int, str]]:
    """Return the events that have come, at most so many, each with its value and address (zmq_socket_monitor(3)).

    To import `zmq.utils.monitor`, which reads them too, takes a tenth of the start of a verb.
    """
    found: list[tuple[int, int, str]] = []
    with contextlib.suppress(zmq.Again):
        while len(found) < most:
            event, address = monitor.recv_multipart(zmq.NOBLOCK)
            number, value = int.from_bytes(event[:2], sys.byteorder), int.from_bytes(event[2:6], sys.byteorder)
            found.append((number, value, address.decode(errors="replace")))
    return found
