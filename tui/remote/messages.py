"""What the two ends of a connection say to each other: msgpack, each message after its length in four bytes.

Both ends bound what they take in; the near end cleans all text, because the far one reads what any process there may
have written.  A field is added at the end and with a default; what changes more than that counts `FORM` up.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Annotated, Any, BinaryIO, Final, Literal

import msgspec
from msgspec import Meta, Struct

from ddptop.agent.run.identity import Process

FORM: Final = 1
"""Of these messages."""
GREETING: Final = b"ddptop-far "
"""How the first line of the far end begins; a login script may have written lines before it."""
LARGEST: Final = 4 << 20
"""Bytes of a message at most."""
PIECE: Final = 256 << 10
"""Bytes of a file in one message."""
_LENGTH: Final = struct.Struct(">I")

_Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
_Text = Annotated[str, Meta(max_length=100_000)]


class Greeting(Struct, frozen=True):
    """The first line of the far end, as JSON after `GREETING`."""

    version: _Text
    form: _Count
    protocol: _Count
    """Of the telemetry."""
    host: _Text
    at: float
    """Its clock, in seconds since the epoch."""


class Open(Struct, frozen=True, tag=True):
    """The first message of the near end: which run is to be shown, and who looks at it."""

    run: str
    last: bool
    """Whether without a name and a live run the newest is meant."""
    who: _Text
    logs: bool
    """Whether the logs are to be sent."""


class Call(Struct, frozen=True, tag=True):
    """Something that is to be done with the run, or a question about it."""

    id: _Count
    what: Literal[
        "pause", "step", "checkpoint", "stop", "resume", "freeze", "kill", "signal", "victims", "processes",
        "resumable", "restart", "recorded", "stacks", "report",
    ]  # fmt: skip
    steps: _Count = 1
    checkpoint: bool = True
    grace_s: float = 5.0
    aim: int | Process | None = None
    number: int = 0
    """Of a signal."""
    resume: bool = False
    since: float = 0.0
    ranks: tuple[int, ...] | None = None
    native: bool = False


class Cancel(Struct, frozen=True, tag=True):
    """Something that was asked for need not be waited for any more."""

    id: _Count


class Opened(Struct, frozen=True, tag=True):
    """The run that is shown from now on."""

    run: str
    path: _Text
    """Its directory."""
    base: _Text


class Missing(Struct, frozen=True, tag=True):
    """There is no such run, or it is not clear which is meant."""

    why: _Text
    runs: tuple[_Text, ...]
    """Those that there are, the newest first."""
    base: _Text


class Record(Struct, frozen=True, tag=True):
    """A small file of the run directory as it is now; without content it is gone."""

    name: _Text
    content: Annotated[bytes, Meta(max_length=1 << 20)] | None


class Piece(Struct, frozen=True, tag=True):
    """A part of a larger file."""

    name: _Text
    offset: Annotated[int, Meta(ge=0, lt=1 << 44)]
    content: Annotated[bytes, Meta(max_length=PIECE)]
    anew: bool = False
    """It is the first of a file that takes the place of the one before."""
    last: bool = False
    """The file is whole."""


class Alive(Struct, frozen=True, tag=True):
    """Who of the run is alive: a `Liveness`; it is read where the text in it is cleaned."""

    liveness: msgspec.Raw


class Ready(Struct, frozen=True, tag=True):
    """All that there is has been sent once."""


class Told(Struct, frozen=True, tag=True):
    """A line on something that is being done; a `countdown` is about what is left of an end."""

    id: _Count
    line: _Text
    countdown: bool = False


class Heard(Struct, frozen=True, tag=True):
    """How many ranks have answered a question, of how many."""

    id: _Count
    heard: _Count
    asked: _Count


class Done(Struct, frozen=True, tag=True):
    """What came of it."""

    id: _Count
    result: msgspec.Raw


class Failed(Struct, frozen=True, tag=True):
    """It was refused."""

    id: _Count
    kind: _Text
    """Name of the exception."""
    text: _Text


class Gone(Struct, frozen=True, tag=True):
    """The run directory is gone, or is that of another run by now."""

    why: _Text


FromNear = Open | Call | Cancel
FromFar = Opened | Missing | Record | Piece | Alive | Ready | Told | Heard | Done | Failed | Gone

from_near: Final[msgspec.msgpack.Decoder[FromNear]] = msgspec.msgpack.Decoder(FromNear)
from_far: Final[msgspec.msgpack.Decoder[FromFar]] = msgspec.msgpack.Decoder(FromFar)


def framed(message: Struct) -> bytes:
    """Return a message after its length."""
    payload = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(payload)) + payload


def read(stream: BinaryIO, decode: Callable[[bytes], Any]) -> Any:
    """Return the next message; None at the end of the stream.

    Raises:
        ValueError: it is unreadable, or too long.
    """
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > LARGEST:
        raise ValueError(f"a message of {length:,} bytes")
    payload = stream.read(length)
    if len(payload) < length:
        return None
    try:
        return decode(payload)
    except (msgspec.MsgspecError, RecursionError) as problem:
        raise ValueError(str(problem)) from problem
