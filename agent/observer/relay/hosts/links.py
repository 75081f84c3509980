"""The link as the relay uses it, and how it is opened; `agent.observer.hosts` has the connections themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import zmq

from ddptop.agent import wire
from ddptop.agent.run.hosts import Listen
from ddptop.agent.run.rundir import Run

SUBSCRIBE: Final = b"S"
UNSUBSCRIBE: Final = b"U"
PUBLICATION: Final = b"P"
COMMAND: Final = b"C"
ANSWER: Final = b"A"
HELLO: Final = b"H"
REFUSED: Final = b"X"
MEMBERS: Final = b"M"
DECISION: Final = b"K"


class Peer(Protocol):
    """The other side of one connection."""

    @property
    def heard_at(self) -> float:
        """Time of its last sign of life, by `time.monotonic`."""
        ...

    @property
    def silent(self) -> bool:
        """Say whether nothing was heard of it for too long."""
        ...

    @property
    def rtt_s(self) -> float | None:
        """Seconds to it and back."""
        ...

    @property
    def offset_s(self) -> float | None:
        """Seconds by which its wall clock is ahead."""
        ...

    @property
    def offset_error_s(self) -> float | None:
        """The true offset is at most so far from that."""
        ...


class Link(Protocol):
    """The connections of a head to its branches, or that of a branch to the head."""

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """The sockets on which something may arrive."""
        ...

    @property
    def peers(self) -> Mapping[bytes, Peer]:
        """Those who are connected, and whose hello was accepted."""
        ...

    @property
    def refused(self) -> int:
        """Messages and connections that were refused."""
        ...

    def turn(self) -> object:
        """Take in what has arrived, and say that this side lives."""

    def send(self, peer: bytes, kind: bytes, *frames: bytes) -> bool:
        """Send a message; return False where there is no room, or no connection."""
        ...

    def announce(self) -> None:
        """Send the own hello again, because it has changed."""

    def close(self) -> None:
        """End the connections, after what waits was sent."""


@dataclass(frozen=True)
class Calls:
    """What a link calls, all of it on the thread that calls `turn`."""

    arrived: Callable[[bytes, bytes, list[bytes]], None]
    """Takes a message: peer, kind and frames."""
    changed: Callable[[bytes], None]
    """Takes note that a peer was accepted, fell silent, is heard again, or is gone."""
    hello: Callable[[], wire.HostHello]
    """Returns the own hello."""


OpenHead = Callable[["zmq.Context[Any]", Run, Calls], tuple[Link, Listen]]
"""Listens; returns the link, and what the branches need to connect. Raises `OSError` or `zmq.ZMQError`."""
OpenBranch = Callable[["zmq.Context[Any]", Listen, Calls], Link]
"""Connects; raises `zmq.ZMQError`."""
