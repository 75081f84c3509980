"""What all messages are made of: their base, the types of their numbers, and the bounds on their bytes.

A message with a number beyond its range is unreadable.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

PROTOCOL: Final = 4

MOST_RANKS: Final = 65_536
"""Ranks of a run at most; a record or a message with more is damaged."""
Rank = Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]
Pid = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Moment = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""Wall-clock nanoseconds, to the year 2262."""
Span = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]
"""A duration in nanoseconds, up to 104 days; below zero where a clock was set back."""
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""Bytes, or samples, of one step: sums of them stay within what a float and 64 bits hold."""
Furthest = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""Steps or seconds of a history: a float holds them."""
MOST_COLUMNS: Final = 8192
"""Columns of a part of a history at most."""
MOST_WHOLE: Final = 240
"""Steps that are kept whole at most, for who looks at single steps."""
Whole = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A number that the script gives."""
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
"""Finite."""
Called = Annotated[str, msgspec.Meta(max_length=100, extra={"limit": 100})]
"""A name that every step repeats: the agent shortens it."""

MAX_COMMAND_BYTES: Final = 4096
"""Bound on a command; set as MAXMSGSIZE on the side that binds."""
MAX_RECORD_BYTES: Final = 256 << 10
"""Bound on one `Step`; a larger one is sent without its collectives and metrics."""
MAX_MESSAGE_BYTES: Final = 1 << 20
"""Bound on what a rank or the observer sends; set as MAXMSGSIZE on the side that connects.

ZeroMQ closes the connection to a peer that sends more; `agent.control.listening` opens another.
"""
UNREAD: Final = 300
"""Messages that may be queued on either side of a connection: those of a rank in half a minute."""


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=True):
    """Base of all messages: a tagged msgpack array, about 130 bytes for a step."""
