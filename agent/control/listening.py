"""A socket that listens to those who publish telemetry, and takes no more than a bound from each.

A connection on which a message above the bound comes is given up by ZeroMQ for good; here it is
made anew a second later, because what comes next may be in order.  Belongs to one thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import zmq

from ddptop.agent import wire

AGAIN_S: Final = 1.0
"""After this a connection that ZeroMQ has not made again by itself is made anew."""


class Listener:
    """A SUB socket of bounded messages.

    Without ZMTP heartbeats: who falls silent is known by the beats that do not come, and the pings of 1,024
    connections took 2.5 % of a core.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        topics: Iterable[bytes],
        unread: int = wire.UNREAD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make the socket; at most `unread` messages of each peer wait to be read."""
        self._clock = clock
        self.socket = context.socket(zmq.SUB)
        self.socket.linger = 0
        self.socket.maxmsgsize = wire.MAX_MESSAGE_BYTES
        self.socket.rcvhwm = unread
        for topic in topics:
            self.socket.subscribe(topic)
        self._lost: dict[str, float] = {}
        """By address, when a connection ended that has not been made again."""
        self._addresses: set[str] = set()
        # Without a bound on what waits there: where it is full, ZeroMQ's thread stands still, and with it all
        # sockets of the context.
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.linger = 0
        self._monitor.rcvhwm = 0
        address = f"inproc://listener-{id(self)}"
        self.socket.monitor(address, zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED)
        self._monitor.connect(address)

    def connect(self, address: str) -> None:
        """Listen to a peer; raises `zmq.ZMQError` where the address is none."""
        self.socket.connect(address)
        self._addresses.add(address)

    def disconnect(self, address: str) -> None:
        """Listen to a peer no longer."""
        self._addresses.discard(address)
        self.socket.disconnect(address)

    def mend(self) -> None:
        """Connect again to those whose connection was given up."""
        now = self._clock()
        while self._monitor.poll(0):
            # As zmq_socket_monitor(3) lays them out. `zmq.utils.monitor` reads them too, and takes a tenth
            # of the time that a verb of the command line takes to start.
            event, endpoint = self._monitor.recv_multipart()
            address = endpoint.decode(errors="replace")
            if int.from_bytes(event[:2], sys.byteorder) == zmq.EVENT_CONNECTED:
                self._lost.pop(address, None)
            elif address in self._addresses:
                self._lost[address] = now
        for address in [address for address, since in self._lost.items() if now - since >= AGAIN_S]:
            del self._lost[address]
            if address in self._addresses:
                self.socket.disconnect(address)
                self.socket.connect(address)

    def close(self) -> None:
        """Close the sockets."""
        self.socket.monitor(None, 0)  # None takes the monitor away
        self._monitor.close(linger=0)
        self.socket.close(linger=0)
