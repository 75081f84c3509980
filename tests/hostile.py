"""Values of valid types as an enemy would choose them, and the marks of text that is fit to be shown."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

PIECES: Final = (
    "\x1b]0;owned\x07", "\x1b[31m", "\x1b[2J", "\x1bc", "\x9b2J", "\x9d52;c;AAAA\x9c", "\x00", "\r", "\n", "\t", "\x7f",
    "\u202e", "\u2066", "\u200b", "\u200d", "\ufeff", "\u2028", "e\u0301\u0301\u0301", "\u0e33", "\ufe0f", "\u1160",
    "温度", "🇩🇪", "👩🏽‍🚀", "[/foo]", "[bold red]", "[@click=app.bell]", "$text", "a", " ", "rank 1", "9" * 90,
)  # fmt: skip
"""What a text is put together from: what terminals obey, what turns or joins text, markup, wide and endless."""
LONGEST: Final = 2000
_INTEGERS: Final = (0, 1, 2, 3, -1, 255, 2**31, 2**53, 2**63 - 1, -(2**63), 2**64 - 1)
_FLOATS: Final = (0.0, -0.0, 1.0, 5e-324, 1e18, 1.7e308, -1.7e308, float("inf"), float("-inf"), float("nan"))

texts = st.lists(st.sampled_from(PIECES), max_size=6).map("".join) | st.just("x\x1b[31m温" * 700)


@cache
def structs(kind: type) -> st.SearchStrategy[Any]:
    """Return a strategy of structs of a type, each within what its decoder lets through."""
    return _values(inspect.type_info(kind))


def _values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    match kind:
        case inspect.Metadata(inner):
            return _values(inner)
        case inspect.StructType(cls):
            return st.builds(cls, **{field.encode_name: _values(field.type) for field in kind.fields})
        case inspect.StrType(max_length=most):
            return texts if most is None else texts.map(lambda text: text[:most])
        case inspect.IntType():
            least = max(-(2**63), kind.ge if kind.ge is not None else -(2**63))
            most = 2**64 - 1 if kind.le is None and kind.lt is None else kind.le if kind.le is not None else kind.lt - 1
            edges = [number for number in (*_INTEGERS, least, most) if least <= number <= most]
            return st.sampled_from(edges)
        case inspect.FloatType(ge=least, le=most):
            return st.sampled_from([each for each in _FLOATS if least is None or most is None or least <= each <= most])
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.DictType(key, value):
            return st.dictionaries(_values(key), _values(value), max_size=3)
        case inspect.VarTupleType(item):
            return st.lists(_values(item), max_size=3).map(tuple)
        case inspect.UnionType(types):
            return st.one_of(map(_values, types))
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
