"""The names of those who ask over a link, in the rooms that know askers only as bytes: `link:<peer>:<asker>`."""

from __future__ import annotations

from typing import Final

from ddptop.agent.observer.hosts.far import LINK

PREFIX: Final = LINK
"""No onlooker of a door is called so: the door refuses that, and names that ZeroMQ makes up begin with a zero byte."""


def named(peer: bytes, asker: bytes) -> bytes:
    """Return the name of an asker of another host."""
    return PREFIX + peer.hex().encode() + b":" + asker


def is_elsewhere(asker: bytes) -> bool:
    """Say whether an asker is on another host."""
    return asker.startswith(PREFIX)


def parts(asker: bytes) -> tuple[bytes, bytes]:
    """Return the peer of an asker on another host, and its name there."""
    peer, _, name = asker[len(PREFIX) :].partition(b":")
    return bytes.fromhex(peer.decode()), name


def host_of(asker: bytes) -> bytes:
    """Return who a command is counted for: all askers of another host are one."""
    return asker[: asker.index(b":", len(PREFIX))] if is_elsewhere(asker) else asker
