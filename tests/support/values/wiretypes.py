"""Hypothesis strategies of every message and record, made from their types: valid to msgspec, hostile in value."""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

_INTEGERS = st.one_of(
    st.integers(-2, 5), st.sampled_from([2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 10**18])
)
"""All that msgpack can carry."""
_FLOATS = st.one_of(
    st.floats(0, 1e4), st.sampled_from([float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 5e-324, -0.0, -1.0])
)
_TEXTS = st.one_of(
    st.sampled_from(["", "hibernating", "running", "\x1b]0;own\x07\x1b[31m", "[/foo] [b", "\u202egnp.", "x" * 999]),
    st.text(st.characters(codec="utf-8"), max_size=12),
)  # fmt: skip


def of_type(kind: Any, **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return values of a type that stands in a message or a record; `fixed` are fields drawn otherwise."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(of_type, arguments))
    if origin is tuple:
        if arguments[1:] == (...,):
            return st.lists(of_type(arguments[0]), max_size=3).map(tuple)
        return st.tuples(*map(of_type, arguments))
    if origin is dict:
        return st.dictionaries(of_type(arguments[0]), of_type(arguments[1]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = {name: hint for name, hint in get_type_hints(kind).items() if name in kind.__struct_fields__}
        return st.builds(kind, **{name: of_type(hint) for name, hint in hints.items()} | fixed)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: _INTEGERS, float: _FLOATS, str: _TEXTS, bool: st.booleans(), type(None): st.none(), bytes: st.binary(),
    }  # fmt: skip
    return simple[kind]
