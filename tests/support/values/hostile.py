"""Values and connections as an enemy would choose them, and the marks of text that is fit to be shown."""

from __future__ import annotations

import socket
import struct
import unicodedata
from collections.abc import Iterator
from random import Random
from typing import Any, Final

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from support.harness import DEADLINE_S

PIECES: Final = (
    "\x1b]0;owned\x07", "\x1b[31m", "\x1b[2J", "\x1bc", "\x9b2J", "\x9d52;c;AAAA\x9c", "\x00", "\r", "\n", "\t", "\x7f",
    "\u202e", "\u2066", "\u200b", "\u200d", "\ufeff", "\u2028", "e\u0301\u0301\u0301", "\u0e33", "\ufe0f", "\u1160",
    "温度", "🇩🇪", "👩🏽‍🚀", "[/foo]", "[bold red]", "[@click=app.bell]", "$text", "a", " ", "rank 1", "9" * 90,
)  # fmt: skip
"""What a text is put together from: what terminals obey, what turns or joins text, markup, wide and endless."""
LONGEST: Final = 2000
_INTEGERS: Final = (0, 1, 2, 3, -1, 255, 2**31, 2**53, 2**63 - 1, -(2**63), 2**64 - 1)
_FLOATS: Final = (0.0, -0.0, 1.0, 5e-324, 1e18, 1.7e308, -1.7e308, float("inf"), float("-inf"), float("nan"))


def structs(kind: type) -> st.SearchStrategy[Any]:
    """Return a strategy of structs of a type, each within what its decoder lets through.

    By a number that seeds the choice of all fields: to have each chosen by the strategy takes a hundred times as long.
    """
    info = inspect.type_info(kind)
    return st.integers(0, 2**32 - 1).map(lambda seed: value_of(info, Random(seed)))


def value_of(kind: inspect.Type, rng: Random) -> Any:
    """Return a value of a type."""
    match kind:
        case inspect.Metadata(inner):
            return value_of(inner, rng)
        case inspect.StructType(cls):
            return cls(**{field.name: value_of(field.type, rng) for field in kind.fields})
        case inspect.StrType(max_length=most):
            text = "".join(rng.choices(PIECES, k=rng.randrange(7))) if rng.random() < 0.9 else "x\x1b[31m温" * 700
            return text[:most]
        case inspect.IntType():
            least = -(2**63) if kind.ge is None else kind.ge
            most = kind.le if kind.le is not None else 2**64 - 1 if kind.lt is None else kind.lt - 1
            return rng.choice([number for number in (*_INTEGERS, least, most) if least <= number <= most])
        case inspect.FloatType(ge=least, le=most):
            return rng.choice([each for each in _FLOATS if least is None or most is None or least <= each <= most])
        case inspect.BytesType():
            return rng.randbytes(rng.randrange(20))
        case inspect.BoolType():
            return rng.random() < 0.5
        case inspect.NoneType():
            return None
        case inspect.DictType(key, value):
            return {value_of(key, rng): value_of(value, rng) for _ in range(rng.randrange(4))}
        case inspect.VarTupleType(item, max_length=most):
            return tuple([value_of(item, rng) for _ in range(rng.randrange(4 if most is None else min(4, most + 1)))])
        case inspect.UnionType(types):
            return value_of(rng.choice(types), rng)
    raise TypeError(kind)


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text in a value, at whatever depth, names of a dictionary included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, msgspec.Struct):
        yield from texts_in([getattr(value, name) for name in value.__struct_fields__])
    elif isinstance(value, dict):
        yield from texts_in([*value.keys(), *value.values()])
    elif isinstance(value, tuple | list):
        for each in value:
            yield from texts_in(each)


def marks(text: str) -> set[str]:
    """Return the characters of a text that a terminal would act on, or that have no cells of their own.

    By the Unicode database alone: control, format and other characters that are not for printing, and marks.
    """
    return {char for char in text if char != "\n" and (unicodedata.category(char)[0] in "CM" or char in "\u2028\u2029")}


def cells(text: str) -> int:
    """Return how many cells clean text takes, by its East Asian width."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


_GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def foreign(address: str, kind: bytes) -> socket.socket:
    """Return a connection to an `ipc://` address that speaks ZMTP 3.0 by hand, as a socket of this kind."""
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(DEADLINE_S)
    made.connect(address.removeprefix("ipc://"))
    ready = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
    made.sendall(_GREETING + b"\x04" + bytes([len(ready)]) + ready)
    return made


def announce(connection: socket.socket, size: int, sent: int) -> None:
    """Say that a message of a size comes, send so much of it, and wait until the other side has hung up."""
    connection.sendall(b"\x02" + struct.pack(">Q", size) + b"\x01" * sent)
    while connection.recv(65536):
        pass
