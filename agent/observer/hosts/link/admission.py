"""Who may connect to a head: the holder of the run's key, and nobody else.

ZeroMQ asks for each connection by ZAP (https://rfc.zeromq.org/spec/27), over a socket of this process; where nobody
answers, nobody comes in.  What it tells of connections that failed is counted here.

ZeroMQ accepts whoever connects, and each unfinished handshake costs a file descriptor for as long as it may take.  A
filter on the listening socket, which is our own, lets the kernel drop requests for connections while there are too
many; connections that are there go on.
"""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import resource
import socket
import struct
from collections import Counter
from typing import Any, Final

import zmq
from zmq.utils import z85

from ddptop.agent.control.listening import events, watch
from ddptop.agent.observer.hosts.link.addresses import Place
from ddptop.agent.run.hosts import LISTEN_VARIABLE
from ddptop.agent.text import Complaint

SPARE: Final = 200
"""Connections at most that are no branch's: those whose handshake is not finished, and strangers."""
DOMAIN: Final = b"ddptop"
_MOST_A_TURN: Final = 5_000
_YOUNG_S: Final = 4.0
"""Seconds after which ZeroMQ has ended each connection whose handshake is not finished."""
_WATCHED: Final = (
    zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_BACKLOG: Final = 128
_DESCRIPTORS: Final = 16_384
"""Open files that the process may have, where the system allows so many: a connection is one."""
_SO_ATTACH_FILTER: Final = 26  # asm-generic/socket.h; Python has no names for them
_SO_DETACH_FILTER: Final = 27
# struct sock_filter: BPF_RET | BPF_K with 0, which keeps no byte of any packet.
_DROP_ALL: Final = struct.pack("HBBI", 0x06, 0, 0, 0)


class Port:
    """A bound address; for use from one thread."""

    def __init__(self, place: Place) -> None:
        """Listen there.

        Raises:
            Complaint: the address is none of this host, or the port is taken or not allowed.
        """
        family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found = socket.getaddrinfo(place.address, place.port, family, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
            self._socket.bind(found[0][4])
            self._socket.listen(_BACKLOG)
            self._socket.setblocking(False)
        except OSError as problem:
            self._socket.close()
            raise Complaint(
                f"{place.address} port {place.port}: cannot listen there ({problem.strerror}); "
                f"{LISTEN_VARIABLE}=HOST:PORT names another"
            ) from None
        self.place = Place(place.address, self._socket.getsockname()[1])
        self.is_open = True

    def bind(self, router: zmq.Socket[Any]) -> None:
        """Let a socket of ZeroMQ accept the connections; raises `zmq.ZMQError`."""
        allow_files()
        router.setsockopt(zmq.IPV6, int(":" in self.place.address))
        # ZeroMQ closes the one that it is given.
        router.setsockopt(zmq.USE_FD, self._socket.dup().detach())
        router.bind(self.place.endpoint)

    def shut(self) -> None:
        """Let nobody connect for now, where the kernel has such filters."""
        filters = ctypes.create_string_buffer(_DROP_ALL)
        with contextlib.suppress(OSError):
            program = struct.pack("@HP", 1, ctypes.addressof(filters))
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        self.is_open = False

    def open(self) -> None:
        """Let others connect again."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        self.is_open = True

    def close(self) -> None:
        """Close this process' own hold of the listening socket."""
        self._socket.close()


def allow_files() -> None:
    """Let this process have as many open files as a head may need, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class Admission:
    """Answers of ZAP, and the count of connections; for use from one thread."""

    def __init__(self, context: zmq.Context[Any], client: str, refused: Counter[str]) -> None:
        """Admit the holder of this public key, in Z85.

        Args:
            context: of the socket that listens, and of no other that listens.
            client: the key.
            refused: takes the count of refused connections, as `key` and `handshake`, and of times that there were
                too many, as `crowd`.

        Raises:
            zmq.ZMQError: the context has such an answer already.
        """
        self._client = z85.decode(client)
        self._refused = refused
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

    def turn(self, port: Port, branches: int, now: float) -> None:
        """Answer and count; `branches` are the connections that belong to known hosts."""
        with contextlib.suppress(zmq.Again):
            for _ in range(_MOST_A_TURN):
                # A REP socket takes the next question only after its answer.
                self._zap.send_multipart(self._answer(self._zap.recv_multipart(zmq.NOBLOCK)))
        if self._monitor is not None:
            for event, value, _ in events(self._monitor, _MOST_A_TURN):
                self._note(event, value, now)
        self._count(now)
        # Of those that it lets in no more than half remain unfinished when it opens again.
        most = branches + (SPARE if port.is_open else SPARE // 2)
        if port.is_open and len(self._open) > most:
            self._refused["crowd"] += 1
            port.shut()
        elif not port.is_open and len(self._open) <= most:
            port.open()

    def _note(self, event: int, value: int, now: float) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self._accepted += 1
            self._open[value] = now
        elif event == zmq.EVENT_DISCONNECTED:
            self._open.pop(value, None)
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._admitted += 1
        else:
            self._refused["key"] += 1

    def _count(self, now: float) -> None:
        # ZeroMQ tells neither which connection was admitted, nor of one that ends with its first bytes more than that
        # it has ended: refused are those that are neither admitted nor possibly still in their handshake.
        left = self._accepted - self._admitted - self._refused["key"] - self._refused["handshake"]
        if left:
            since = now - _YOUNG_S
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
