"""The frames of a link: a kind of one byte, and what belongs to it. Frames of another form are refused here.

Kinds as each side sends them (`DEALER -> ROUTER` without the empty frame of a REQ):

    S topic            subscribe               U topic             unsubscribe
    P topic payload    publication             M payload           records of ranks on other hosts
    C name *frames     command                 A name *frames      answer: each `[payload]` or `[rank, payload]`
    H payload          `wire.HostHello`        X text              refused, and why
    T at_ns received   ping, by the head       t at_ns at_ns received   pong: of the ping, and own; see `pings`
"""

from __future__ import annotations

import struct
from typing import Final

from ddptop.agent import wire

SUBSCRIBE: Final = b"S"
UNSUBSCRIBE: Final = b"U"
PUBLICATION: Final = b"P"
COMMAND: Final = b"C"
ANSWER: Final = b"A"
HELLO: Final = b"H"
REFUSED: Final = b"X"
MEMBERS: Final = b"M"
PING: Final = b"T"
PONG: Final = b"t"

MOST_NAME: Final = 32
"""Bytes of the name of a requester."""
_TOPIC: Final = 32
_RANK: Final = 5
_HELLO: Final = 64 << 10
_TEXT: Final = 1000

PINGED: Final = struct.Struct("<qQ")
"""A ping: own wall clock in nanoseconds, and the bytes received by now."""
PONGED: Final = struct.Struct("<qqQ")
"""A pong: the time of the ping, own wall clock in nanoseconds, and the bytes received by now."""

_BOUNDS: Final[dict[bytes, tuple[tuple[int, ...], ...]]] = {
    SUBSCRIBE: ((_TOPIC,),),
    UNSUBSCRIBE: ((_TOPIC,),),
    PUBLICATION: ((_TOPIC, wire.MAX_MESSAGE_BYTES),),
    COMMAND: ((MOST_NAME, wire.MAX_MESSAGE_BYTES), (MOST_NAME, _RANK, wire.MAX_COMMAND_BYTES)),
    ANSWER: ((MOST_NAME, wire.MAX_MESSAGE_BYTES), (MOST_NAME, _RANK, wire.MAX_MESSAGE_BYTES)),
    HELLO: ((_HELLO,),),
    REFUSED: ((_TEXT,),),
    MEMBERS: ((wire.MAX_MESSAGE_BYTES,),),
}
"""By kind, the bytes of each frame at most, for each number of frames that there may be."""

_FIXED: Final = {PING: PINGED.size, PONG: PONGED.size}


def fault(kind: bytes, frames: list[bytes]) -> str | None:
    """Return what is wrong with a message, in one word to count it by; None where nothing is."""
    if kind in _FIXED:
        return None if len(frames) == 1 and len(frames[0]) == _FIXED[kind] else "size"
    forms = _BOUNDS.get(kind)
    if forms is None:
        return "kind"
    for bounds in forms:
        if len(bounds) == len(frames):
            return None if all(len(frame) <= most for frame, most in zip(frames, bounds, strict=True)) else "size"
    return "frames"
