"""Cleaning of decoded structs: it stands between a decoder and all other code.

Messages of a socket, records of a run directory and remembered forms may be hostile.
A field's type bounds its text, where it is one of the types of this module; any other text
has at most `LONGEST` characters.  This module knows no message and no record.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, inspect

from ddptop.agent.text import clean

LONGEST: Final = 2000

LONGEST_NAME: Final = 40
"""Characters of a name, those of metrics included: in the rank that sends it and in each reader."""

Name = Annotated[str, Meta(extra={"limit": LONGEST_NAME})]
"""One word or two: a state, a device, a metric."""
Label = Annotated[str, Meta(extra={"limit": 100})]
"""The name of a person, a terminal or a host."""
Line = Annotated[str, Meta(extra={"limit": 400})]
"""A sentence for a person."""
Lines = Annotated[str, Meta(extra={"limit": 1 << 16, "lines": True})]
"""Several lines, each of them clean."""
Verbatim = Annotated[str, Meta(extra={"limit": None})]
"""Text that the program uses, such as a path: it is not changed here, and cleaned where it is shown."""

_T = TypeVar("_T")
_Cleaning = Callable[[Any], Any]
"""A function that cleans values of one type, and returns the same object where nothing had to be cleaned."""


def cleaned(struct: _T) -> _T:
    """Return a struct with all of its text clean and bounded: the same object where it is so already."""
    kind = type(struct)
    cleaning = _cleanings.get(kind)
    if cleaning is None:
        cleaning = _cleanings[kind] = _of(inspect.type_info(kind), LONGEST) or _same
    result: _T = cleaning(struct)
    return result


def is_plain(text: str) -> bool:
    """Say whether a text surely needs no cleaning: a quick check that most text passes."""
    return text.isascii() and text.isprintable()


def clean_name(text: str) -> str:
    """Return the name of a metric, clean and not empty.

    A name longer than `LONGEST_NAME` is cut, and a checksum at its end tells it from others with the same beginning.
    """
    return _clean_name(text) if len(text) <= _REMEMBERED else _bounded_name(text)


def _bounded_name(text: str) -> str:
    name = clean(text, len(text)).strip() or "?"
    if len(name) <= LONGEST_NAME:
        return name
    mark = f"~{zlib.crc32(name.encode(errors='replace')):08x}"
    return name[: LONGEST_NAME - len(mark)] + mark


_clean_name: Final = lru_cache(4096)(_bounded_name)
_REMEMBERED: Final = 160
"""Characters of a name at most for the cache, so that it stays small."""


_MOST_PLAIN: Final = 4096
"""Forms of a message whose texts are known to need no cleaning: hosts, logs and activities of many ranks."""
_cleanings: Final[dict[type, _Cleaning]] = {}


def _same(value: Any) -> Any:
    return value


def _of(kind: inspect.Type, limit: int | None, lines: bool = False) -> _Cleaning | None:
    """Return the function that cleans values of a type, None where they hold no text."""
    match kind:
        case inspect.Metadata(inner, extra=extra):
            told = extra or {}
            return _of(inner, told.get("limit", limit), told.get("lines", lines))
        case inspect.StrType():
            return None if limit is None else _text(limit, lines)
        case inspect.StructType():
            return _struct(kind, limit)
        case inspect.UnionType(types):
            return _union(types, limit, lines)
        case inspect.DictType(key, value):
            return _mapping(_of(key, limit), _of(value, limit))
        case inspect.VarTupleType(item):
            each = _of(item, limit)
            return None if each is None else _sequence(each)
    return None


def _text(limit: int, lines: bool) -> _Cleaning:
    def cleaning(text: str) -> str:
        if len(text) <= limit and is_plain(text):
            return text
        if lines:
            return "\n".join(clean(line, limit) for line in text[: limit * 4].splitlines())[:limit]
        return clean(text, limit)

    return cleaning


def _struct(kind: inspect.StructType, limit: int | None) -> _Cleaning | None:
    found = {field.name: _of(field.type, limit) for field in kind.fields}
    parts = {name: cleaning for name, cleaning in found.items() if cleaning is not None}
    if not parts:
        return None
    # Texts of fields repeat from message to message and are checked once; collections are checked each time.
    texts = [field.name for field in kind.fields if field.name in parts and _is_text(field.type)]
    rest = [name for name in parts if name not in texts]
    read = attrgetter(*texts, *rest, "__class__")  # with a single name it would not return a tuple
    plain: set[tuple[Any, ...]] = set()
    names, middle = (*texts, *rest), len(texts)

    def cleaning(struct: Any) -> Any:
        values = read(struct)
        known = values[:middle]
        done = middle if known in plain else 0
        changes = {}
        for name, value in zip(names[done:], values[done:], strict=False):
            if value and (new := parts[name](value)) is not value:
                changes[name] = new
        if changes:
            return msgspec.structs.replace(struct, **changes)
        if not done and len(plain) < _MOST_PLAIN and sum(map(len, filter(None, known))) < LONGEST:
            plain.add(known)
        return struct

    return cleaning


def _is_text(kind: inspect.Type) -> bool:
    match kind:
        case inspect.Metadata(inner):
            return _is_text(inner)
        case inspect.UnionType(types):
            return any(map(_is_text, types))
    return isinstance(kind, inspect.StrType)


def _union(types: tuple[inspect.Type, ...], limit: int | None, lines: bool) -> _Cleaning | None:
    found = [each for each in (_of(kind, limit, lines) for kind in types) if each is not None]
    if not found:
        return None
    # No field's type is a union of two types that need cleaning.
    (cleaning,) = found
    return lambda value: value if value is None else cleaning(value)


def _mapping(key: _Cleaning | None, value: _Cleaning | None) -> _Cleaning | None:
    if key is None and value is None:
        return None
    of_key, of_value = key or _same, value or _same
    plain: set[tuple[str, ...]] = set()

    def cleaning(mapping: Mapping[Any, Any]) -> Mapping[Any, Any]:
        # The names of phases and metrics are the same from frame to frame.
        if value is None and (names := tuple(mapping)) in plain:
            return mapping
        new = {of_key(name): of_value(each) for name, each in mapping.items()}
        if new != mapping:
            return new
        if value is None and len(plain) < _MOST_PLAIN and sum(map(len, names)) < LONGEST:
            plain.add(names)
        return mapping

    return cleaning


def _sequence(each: _Cleaning) -> _Cleaning:
    def cleaning(values: tuple[Any, ...]) -> tuple[Any, ...]:
        new = tuple([each(value) for value in values])
        return values if new == values else new

    return cleaning
