"""The port at which a head listens: a listening socket of our own, which ZeroMQ accepts connections from.

ZeroMQ accepts whoever connects, and each unfinished handshake costs a file descriptor for as long as it may take.  A
filter on the listening socket lets the kernel drop requests for connections while there are too many; connections
that are there go on.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
import socket
import struct
from typing import Any, Final

import zmq

from ddptop.agent.observer.hosts.link.addresses import LISTEN_VARIABLE, Place
from ddptop.agent.text import Complaint

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
