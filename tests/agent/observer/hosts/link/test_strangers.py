"""Strangers on the network: refused, counted, and nothing slowed, by raw sockets and by ZeroMQ's own."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import psutil
import pytest
import zmq
from support.fakes.clocks import Ahead
from support.fakes.links import Links, cable, hello, links

from ddptop.agent import wire
from ddptop.agent.observer.hosts.link import frames, keys
from ddptop.agent.observer.hosts.link import side as link
from ddptop.agent.observer.hosts.link.admission import SPARE
from ddptop.agent.observer.hosts.link.branch import HEAD, Branch
from ddptop.agent.observer.hosts.link.side import HANDSHAKE_S

GREETING_3_1 = b"\xff" + bytes(8) + b"\x7f\x03\x01"

OVER_S = 5.0
"""Seconds after which no connection is in its handshake any more."""


@pytest.fixture
def clock() -> Ahead:
    """The clock of the head."""
    return Ahead()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, clock: Ahead) -> Iterator[Links]:
    """A head that ends a connection after a second without a handshake."""
    monkeypatch.setattr(link, "HANDSHAKE_S", 1.0)
    with links(clock=clock) as made:
        yield made


def address(made: Links) -> tuple[str, int]:
    host, _, port = made.head.listen.addresses[0].removeprefix("tcp://").rpartition(":")
    return host, int(port)


def stranger(made: Links) -> socket.socket:
    return socket.create_connection(address(made), 5)


def proves_to_work(made: Links, branch: Branch) -> float:
    """Send a command up and down; return the seconds that both took."""
    # After the clock was put forward the head has to hear of it first.
    made.until(lambda: any(peer.is_linked for peer in made.head.peers.values()))
    began = time.monotonic()
    before = len(made.told.of(frames.COMMAND))
    name = next(name for name, peer in made.head.peers.items() if peer.is_linked)
    assert branch.send(HEAD, frames.COMMAND, b"a", b"up")
    made.until(lambda: len(made.told.of(frames.COMMAND)) > before)
    assert made.head.send(name, frames.COMMAND, b"a", b"down")
    return time.monotonic() - began


def is_closed(peer: socket.socket) -> bool:
    """Say whether the other side has ended the connection."""
    peer.setblocking(False)
    try:
        while peer.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


class Outside:
    """Sockets of ZeroMQ in a context of their own."""

    def __init__(self) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self._sockets: list[zmq.Socket[Any]] = []

    def socket(self, kind: int, **options: Any) -> zmq.Socket[Any]:
        made: zmq.Socket[Any] = self.context.socket(kind)
        made.linger = 0
        for name, value in options.items():
            setattr(made, name, value)
        self._sockets.append(made)
        return made

    def plain(self, made: Links, **options: Any) -> zmq.Socket[Any]:
        """Return a DEALER that connects with these options instead of the run's keys."""
        dealer = self.socket(zmq.DEALER, **options)
        dealer.connect(made.head.listen.addresses[0])
        return dealer

    @staticmethod
    def greet(dealer: zmq.Socket[Any]) -> None:
        """Send a hello, unless the connection has failed already and is given up: then a send would wait for ever."""
        with contextlib.suppress(zmq.Again):
            dealer.send_multipart([frames.HELLO, wire.encode(hello("evil", (5,)))], zmq.NOBLOCK)

    def hostile(self, made: Links, **options: Any) -> zmq.Socket[Any]:
        """Return a connection of somebody who has the run's key, and sends what he likes."""
        listen = made.head.listen
        return self.plain(
            made,
            routing_id=b"evil",
            curve_serverkey=listen.server.encode(),
            curve_publickey=listen.client_public.encode(),
            curve_secretkey=listen.client_secret.encode(),
            **options,
        )

    def close(self) -> None:
        for each in self._sockets:
            each.close()
        self.context.term()


@pytest.fixture
def outside() -> Iterator[Outside]:
    outside = Outside()
    yield outside
    outside.close()


def test_a_port_scan_costs_nothing(made: Links, clock: Ahead) -> None:
    """Connections that end at once, 300 one after the other, some with a reset."""
    branch, _, _ = made.linked()
    for number in range(300):
        peer = stranger(made)
        if number % 2:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
        made.turn(0)
    made.until(lambda: made.head.connections == 1)
    clock.ahead += OVER_S
    made.until(lambda: made.head.refused["handshake"] > 100)
    assert proves_to_work(made, branch) < HANDSHAKE_S
    assert len(made.told.events) == 1, "an event a minute, not one each"
    assert "refused" in made.told.events[0]


@pytest.mark.parametrize(
    "content",
    [
        b"GET / HTTP/1.1\r\nHost: node1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        os.urandom(4096),
        b"\xff" * 4096,
        bytes(4096),
        # ZMTP 1.0 and 2.0 know no keys: an anonymous peer, a message.
        b"\x01\x00\x05\x00hello",
        b"\xff" + bytes(8) + b"\x7f\x01\x05" + b"\x00\x00" + b"\x00\x05hello",
        # 3.1 with another mechanism, and with CURVE and nonsense in place of its commands.
        GREETING_3_1 + b"NULL".ljust(20, b"\0") + bytes(32) + b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x06DEALER",
        GREETING_3_1 + b"PLAIN".ljust(20, b"\0") + bytes(32) + b"\x04\x08\x05HELLO\x00\x00",
        GREETING_3_1 + b"CURVE".ljust(20, b"\0") + bytes(32) + b"\x04\xc8\x05HELLO" + bytes(194),
        GREETING_3_1 + b"CURVE".ljust(20, b"\0") + bytes(32) + b"\x04\x08\x07MESSAGE",
        # A frame of 2^62 bytes is announced.
        GREETING_3_1 + b"CURVE".ljust(20, b"\0") + bytes(32) + b"\x06\x40" + bytes(7) + bytes(4096),
        GREETING_3_1 + b"CURVE".ljust(20, b"\0") + bytes(32) + b"\x02\x40" + bytes(7) + bytes(4096),
    ],
    ids=["http", "tls", "random", "ones", "zeros", "zmtp1", "zmtp2", "null", "plain", "hello", "message", "command",
         "frame"],
)  # fmt: skip
def test_garbage_is_refused_and_counted(made: Links, clock: Ahead, content: bytes) -> None:
    """The connection is ended, nothing of it arrives, and the link goes on."""
    branch, _, _ = made.linked()
    with stranger(made) as peer:
        with contextlib.suppress(OSError):
            peer.sendall(content)
        made.until(lambda: is_closed(peer) and made.head.connections == 1)
    clock.ahead += OVER_S
    made.until(lambda: made.head.refused["handshake"])
    assert len(made.head.peers) == 1
    assert proves_to_work(made, branch) < HANDSHAKE_S
    assert [kind for _, kind, _ in made.told.messages] == [b"C"]


@pytest.mark.parametrize("mechanism", ["null", "plain"])
def test_other_mechanisms_of_zeromq_are_refused(made: Links, clock: Ahead, outside: Outside, mechanism: str) -> None:
    options = {} if mechanism == "null" else {"plain_username": b"root", "plain_password": b"root"}
    dealer = outside.plain(made, **options)
    outside.greet(dealer)
    # It may be refused, and its connection be gone, before it is looked at.
    made.until(lambda: made.head.connections or made.head.refused["handshake"])
    clock.ahead += OVER_S
    made.until(lambda: made.head.refused["handshake"])
    assert not made.head.peers


def test_the_key_of_another_run_is_refused_and_counted_as_such(made: Links) -> None:
    """The stranger has the head's public key, which is no secret, and a key pair of another run."""
    branch, _, _ = made.linked()
    _, other = keys.generate()
    listen = msgspec.structs.replace(made.head.listen, client_public=other.public, client_secret=other.secret)
    _, told = made.branch(hello("evil", (5,)), listen)
    made.until(lambda: made.head.refused["key"])
    made.until(lambda: told.events)
    assert "does not know the key" in told.events[0]
    assert any("a wrong key from 127.0.0.1" in event for event in made.told.events)
    assert [peer.host for peer in made.head.peers.values()] == ["node2"]
    assert proves_to_work(made, branch) < HANDSHAKE_S


def test_the_public_key_of_the_run_without_its_secret_is_of_no_use(made: Links, clock: Ahead, outside: Outside) -> None:
    """What the allow-list compares is the public key: that a stranger knows the secret too is proved by CURVE."""
    _, other = keys.generate()
    dealer = outside.plain(made, curve_serverkey=made.head.listen.server.encode(),
        curve_publickey=made.head.listen.client_public.encode(), curve_secretkey=other.secret.encode(),
    )  # fmt: skip
    outside.greet(dealer)
    made.until(lambda: made.head.connections)
    clock.ahead += OVER_S
    made.until(lambda: made.head.refused["handshake"])
    assert not made.head.peers


def test_a_head_without_the_secret_of_the_run_gets_nothing_from_a_branch() -> None:
    """Whoever takes the port of the head while it is away is not believed."""
    with links() as real, links() as false:
        listen = msgspec.structs.replace(real.head.listen, addresses=false.head.listen.addresses)
        branch, _ = false.branch(hello("node2", (2, 3)), listen)
        false.until(lambda: false.head.refused["handshake"] and branch.refused["handshake"])
        assert not branch.is_linked
        assert not false.head.peers


def test_a_replayed_connection_says_nothing(made: Links, clock: Ahead) -> None:
    """All that a branch has sent, its hello and a command among it, is sent again byte for byte."""
    with cable(made) as (tap, listen):
        branch, _ = made.branch(hello("node2", (2, 3)), listen)
        made.until(lambda: branch.is_linked)
        assert branch.send(HEAD, frames.COMMAND, b"a", b"kill")
        made.until(lambda: made.told.of(frames.COMMAND))
        recorded = tap.recorded
        assert len(recorded) > 500
        before = sum(made.head.refused.values())
        for piece in (len(recorded), 100):
            with stranger(made) as peer, contextlib.suppress(OSError):
                for first in range(0, len(recorded), piece):
                    peer.sendall(recorded[first : first + piece])
                    made.turn(0.01)
                made.until(lambda peer=peer: is_closed(peer))  # type: ignore[misc]
        clock.ahead += OVER_S
        made.until(lambda: sum(made.head.refused.values()) >= before + 2)
        assert made.told.of(frames.COMMAND) == [[b"a", b"kill"]]
        assert len(made.head.peers) == 1
        assert proves_to_work(made, branch) < HANDSHAKE_S


@pytest.mark.parametrize("first", [b"", b"\xff", GREETING_3_1 + b"CURVE".ljust(20, b"\0") + bytes(32)])
def test_connections_that_never_finish_their_handshake_are_ended_and_slow_nothing(made: Links, first: bytes) -> None:
    """Five hundred at once: descriptors stay bounded, each is ended after some seconds, commands take no longer."""
    branch, _, _ = made.linked()
    process = psutil.Process()
    idle: list[socket.socket] = []
    most, slowest = 0, 0.0
    began = time.monotonic()
    try:
        while len(idle) < 500 and time.monotonic() < began + 20:
            peer = socket.socket()
            peer.setblocking(False)
            peer.connect_ex(address(made))
            idle.append(peer)
            with contextlib.suppress(OSError):
                peer.send(first)
            made.turn(0)
            most = max(most, made.head.connections)
            if len(idle) % 50 == 0:
                slowest = max(slowest, proves_to_work(made, branch))
        # A few may be accepted between two looks.
        assert most <= SPARE + 60
        assert process.num_fds() < 2 * 500 + SPARE + 200
        assert slowest < HANDSHAKE_S
        made.until(lambda: all(map(is_closed, idle)) or made.head.connections == 1)
    finally:
        for peer in idle:
            peer.close()
    made.until(lambda: made.head.connections == 1)
    # Others can come again.
    other, _ = made.branch(hello("node3", (4, 5)))
    made.until(lambda: other.is_linked)


def test_who_has_the_key_and_talks_nonsense_is_refused_by_message(outside: Outside) -> None:
    """Unknown kinds, wrong forms, false acknowledgements, no hello: each is counted, none arrives or stops the rest."""
    with links() as made:
        branch, _, _ = made.linked()
        evil = outside.hostile(made)
        evil.send_multipart([b"P", b"steps", b"before any hello"])
        evil.send_multipart([b"H", b"\xc1 no message"])
        evil.send_multipart([b"H", wire.encode(hello("evil", (5,)))])
        made.until(lambda: len(made.head.peers) == 2)
        for message in (
            [b""], [b"", b""], [b"Z", b"a"], [b"P" * 100], [b"P", b"a"], [b"S", bytes(100)], [b"X", b"go away"],
            [b"T", b""], [b"T", bytes(100)], [b"T", frames.PINGED.pack(-1, 2**64 - 1)], [b"t", bytes(24)],
            [b"t", frames.PONGED.pack(1, 2, 2**63)], [b"C", *[b"a"] * 1000], [b"H", bytes(1000)],
        ):  # fmt: skip
            evil.send_multipart(message)
        evil.send_multipart([b"C", b"a", b"the last"])
        made.until(lambda: made.told.messages)
        assert [content for _, _, content in made.told.messages] == [[b"a", b"the last"]]
        refused = made.head.refused
        assert (refused["unknown"], refused["hello"], refused["direction"], refused["kind"]) == (1, 2, 1, 4)
        assert refused["pong"] == 3
        assert made.head.peers[b"evil"].refused >= 10
        assert proves_to_work(made, branch) < HANDSHAKE_S


def test_a_frame_above_the_bound_ends_its_connection_only(outside: Outside) -> None:
    with links() as made:
        branch, _, _ = made.linked()
        evil = outside.hostile(made, reconnect_ivl=-1)
        evil.send_multipart([b"H", wire.encode(hello("evil", (5,)))])
        made.until(lambda: b"evil" in made.head.peers)
        evil.send_multipart([b"P", b"steps", bytes(wire.MAX_MESSAGE_BYTES + 1000)])
        made.until(lambda: not made.head.peers[b"evil"].is_connected)
        assert not made.told.messages
        assert proves_to_work(made, branch) < HANDSHAKE_S


def test_who_has_the_key_and_floods_slows_the_others_by_little(outside: Outside) -> None:
    """Ten thousand messages: the others are read in between."""
    with links() as made:
        branch, _, _ = made.linked()
        evil = outside.hostile(made)
        evil.send_multipart([b"H", wire.encode(hello("evil", (5,)))])
        made.until(lambda: b"evil" in made.head.peers)
        for _ in range(5):
            with contextlib.suppress(zmq.Again):
                for _ in range(2_000):
                    evil.send_multipart([b"P", b"steps", b"flood"], zmq.NOBLOCK)
            assert proves_to_work(made, branch) < 5


def test_a_branch_is_not_hurt_by_a_head_that_talks_nonsense(outside: Outside) -> None:
    """Whoever has the head's secret is refused by message as well."""
    server, client = keys.generate()
    router = outside.socket(zmq.ROUTER, curve_server=True, curve_secretkey=server.secret.encode())
    port = router.bind_to_random_port("tcp://127.0.0.1")
    with links(pairs=(server, client)) as made:
        listen = msgspec.structs.replace(made.head.listen, addresses=(f"tcp://127.0.0.1:{port}",))
        branch, told = made.branch(hello("node2", (2, 3)), listen)
        made.until(lambda: router.poll(0))
        name, _, greeting = router.recv_multipart()
        assert wire.read_host_hello(greeting).host == "node2"
        answer = msgspec.structs.replace(hello(), session=1)
        for message in (
            [b"P", b"steps", b"too early"], [b"H", b"nonsense"], [b"H", wire.encode(hello(session=77))],
            [b"H", wire.encode(answer)], [b"Z"], [b"T", b""], [b"t", bytes(24)], [b"C", b"a", b"the last"],
        ):  # fmt: skip
            router.send_multipart([name, *message])
        made.until(lambda: told.messages)
        assert told.of(frames.COMMAND) == [[b"a", b"the last"]]
        assert branch.is_linked
        assert sum(branch.refused.values()) == 5
