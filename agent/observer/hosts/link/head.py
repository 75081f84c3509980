"""The side of a link that listens: the observer on the host of rank 0."""

from __future__ import annotations

from typing import Any, Final

import zmq

from ddptop.agent import wire
from ddptop.agent.observer.hosts.link import addresses, frames
from ddptop.agent.observer.hosts.link.addresses import Place
from ddptop.agent.observer.hosts.link.admission import Admission, Port
from ddptop.agent.observer.hosts.link.keys import Pair
from ddptop.agent.observer.hosts.link.peer import Peer
from ddptop.agent.observer.hosts.link.side import CLOCKS, Clocks, Said, Side, prepare
from ddptop.agent.run.hosts import Listen
from ddptop.agent.text import clean_line

_LONGEST_NAME: Final = 32
_TELL_S: Final = 60.0
"""Seconds between two events about strangers."""


_THROW_AWAY_S: Final = 0.5
_QUIET_MS: Final = 20


class Head(Side):
    """The ROUTER; for use from one thread.

    It has a context of its own: a thread of ZeroMQ's for the network, which no flood of strangers shares with the
    sockets of this host.  Who holds the run's key can end the training as well: a message of such a one is bounded in
    its parts, but not in their number before the last has arrived.
    """

    def __init__(
        self,
        keys: tuple[Pair, Pair],
        place: Place,
        hello: wire.HostHello,
        clocks: Clocks = CLOCKS,
    ) -> None:
        """Listen.

        Args:
            keys: those of `keys.generate` or `keys.derive`.
            place: where to listen, see `addresses.choose`.
            hello: this host; its ranks are those that no other host may claim.
            clocks: of this host.

        Raises:
            Complaint: nobody can listen there.
            zmq.ZMQError: there cannot be a socket.
        """
        super().__init__(hello, clocks)
        self._port = Port(place)
        self._context = zmq.Context()
        self._strangers = 0
        self._told_at = -_TELL_S
        try:
            server, client = keys
            self._admission = Admission(self._context, client.public, self.refused)
            self._socket: zmq.Socket[Any] = self._context.socket(zmq.ROUTER)
            prepare(self._socket)
            self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            # A branch that comes back is the same one, also before its former connection is known to have ended.
            self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
            self._socket.curve_server = True
            self._socket.curve_secretkey = server.secret.encode()
            self._admission.guard(self._socket)
            self._port.bind(self._socket)
        except BaseException:
            self._context.destroy(linger=0)
            self._port.close()
            raise
        self.listen = Listen(
            run=hello.run,
            run_id=hello.run_id,
            host=hello.host,
            addresses=addresses.told_to_others(self._port.place),
            server=server.public,
            client_public=client.public,
            client_secret=client.secret,
        )
        """What a branch has to know to come here."""

    @property
    def sockets(self) -> list[zmq.Socket[Any]]:
        """What to wait for now; it may be others at the next time."""
        reads = [self._socket] if self._clock() >= self._read_at else []
        return [*reads, *self._admission.sockets]

    @property
    def connections(self) -> int:
        """Connections that are open, of anybody."""
        return self._admission.connections

    def update(self, hello: wire.HostHello) -> None:
        """Tell all branches what has changed on this host."""
        self._hello = hello
        for peer in tuple(self.peers.values()):
            if peer.is_connected:
                self._greet(peer)

    def close(self) -> None:
        """Close the sockets, after what was sent has left or a second is over."""
        self._socket.monitor(None, 0)  # None takes the monitor away
        self._throw_away()
        self._socket.close()
        self._port.close()
        self._admission.close()
        self._context.term()

    def _throw_away(self) -> None:
        """Read what is left, for a moment: libzmq 4.3.5 aborts the process where a connection that has ended is closed
        while what came by it fills its queue (`!_io_error` in `stream_engine_base.cpp`).
        """
        until = self._clock() + _THROW_AWAY_S
        while self._clock() < until:
            try:
                self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:
                if not self._socket.poll(_QUIET_MS):
                    return

    def _look(self) -> None:
        now = self._clock()
        self._admission.turn(self._port, len(self.peers), now)
        strangers = self.refused["key"] + self.refused["handshake"]
        if strangers > self._strangers and now - self._told_at >= _TELL_S:
            new, self._strangers, self._told_at = strangers - self._strangers, strangers, now
            whence = f", one with a wrong key from {self._admission.last_stranger}" if self.refused["key"] else ""
            port = self._port.place.port
            self._news.append(Said(f"{new} connections to port {port} of this observer were refused{whence}"))

    def _read(self) -> tuple[bytes, list[bytes]]:
        name, *message = self._socket.recv_multipart(zmq.NOBLOCK)
        return name, message

    def _transmit(self, to: Peer, message: tuple[bytes, ...]) -> None:
        self._socket.send_multipart([to.name, *message], zmq.NOBLOCK)

    def _meet(self, name: bytes, payload: bytes) -> None:
        try:
            hello = wire.read_host_hello(payload)
        except wire.Unreadable:
            self._refuse("hello", self.peers.get(name))
            return
        peer = self.peers.get(name)
        problem = self._objection(name, hello)
        if problem is not None:
            self._refuse("run", peer)
            self._send_away(name, hello, problem)
            if peer is not None:
                self._lose(peer)
            return
        if peer is None:
            peer = self.peers[name] = Peer(name, hello, self._clock(), self._wall_ns())
        peer.hello = hello
        is_new = not peer.is_connected or peer.session != hello.session
        if is_new:
            peer.begin(hello.session, self._clock())
        peer.heard_at, peer.heard_at_ns = self._clock(), self._wall_ns()
        for other in self._claimants(name, hello):
            # The observer of that host was replaced, or its ranks were started on another one.
            self._lose(other)
            del self.peers[other.name]
            self._changed(other.name)
        if is_new:
            self._greet(peer)
            self._ping(peer)
        self._changed(name)

    def _objection(self, name: bytes, hello: wire.HostHello) -> str | None:
        """Return why a host is not one of this run's."""
        own = self._hello
        if hello.protocol != own.protocol:
            return f"it speaks protocol {hello.protocol} (ddptop {hello.agent_version}), the head {own.protocol}"
        if hello.run_id != own.run_id:
            return f"it belongs to another run, {hello.run}"
        if hello.generation == own.generation and hello.world != own.world:
            return f"its world is {hello.world}, that of the head {own.world}"
        if any(rank >= hello.world for rank in hello.ranks):
            return f"it claims ranks beyond its world of {hello.world}"
        if hello.generation == own.generation and (both := set(hello.ranks) & set(own.ranks)):
            return f"it claims rank {min(both)}, which is on {own.host}"
        for other in self._claimants(name, hello):
            if other.host != hello.host and other.is_linked and other.hello.generation >= hello.generation:
                return f"it claims rank {min(set(hello.ranks) & set(other.ranks))}, which is on {other.host}"
        if name not in self.peers and (len(name) > _LONGEST_NAME or not self._has_place()):
            return f"there are {len(self.peers)} hosts already"
        return None

    def _claimants(self, name: bytes, hello: wire.HostHello) -> list[Peer]:
        """Return the other peers that have one of these ranks."""
        ranks = set(hello.ranks)
        return [peer for peer in self.peers.values() if peer.name != name and not ranks.isdisjoint(peer.ranks)]

    def _has_place(self) -> bool:
        if len(self.peers) >= wire.MOST_HOSTS:
            gone = next((name for name, peer in self.peers.items() if not peer.is_connected), None)
            if gone is None:
                return False
            del self.peers[gone]
        return True

    def _send_away(self, name: bytes, hello: wire.HostHello, problem: str) -> None:
        self._say_once(f"{hello.host} was refused as a host of this run: {problem}")
        message = [name, frames.REFUSED, clean_line(problem).encode()]
        try:
            self._socket.send_multipart(message, zmq.NOBLOCK)
        except zmq.ZMQError:
            # It has left, or does not read.
            return
