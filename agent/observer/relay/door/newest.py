"""The newest `Hello`, `Beat` and `Summary` of each rank, as it sent them: what an onlooker needs at first.

This module knows no socket.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from ddptop.agent import wire

LARGEST_SUMMARY: Final = 64 << 10
"""Bytes of a summary that is kept; larger ones are only repeated."""
_ROOM: Final = wire.MAX_MESSAGE_BYTES - (4 << 10)
"""Bytes of the parts of one `Ranks` message."""

_Kept = tuple[int, bytes]
"""Generation, and the message."""


class Newest:
    """The newest messages of each rank of the present generation."""

    def __init__(self) -> None:
        self._hellos: dict[int, _Kept] = {}
        self._beats: dict[int, _Kept] = {}
        self._summaries: dict[int, _Kept] = {}
        self._changed: tuple[set[int], set[int], set[int]] = (set(), set(), set())
        self._generation = 0

    def note(self, message: wire.Telemetry, payload: bytes) -> None:
        """Take in a message; one of a former generation is left out."""
        if type(message) is wire.Beat:
            kept, changed = self._beats, self._changed[1]
            generation = self._generation if message.generation is None else message.generation
        elif type(message) is wire.Summary and len(payload) <= LARGEST_SUMMARY:
            kept, changed, generation = self._summaries, self._changed[2], message.generation
        elif type(message) is wire.Hello:
            kept, changed, generation = self._hellos, self._changed[0], message.generation
        else:
            return
        # That of the next generation may come before it is known that it has begun.
        if self._generation <= generation <= self._generation + 1:
            kept[message.rank] = generation, payload
            changed.add(message.rank)

    def begin(self, generation: int) -> None:
        """Forget the former generations."""
        self._generation = generation
        for kept in (self._hellos, self._beats, self._summaries):
            for rank in [rank for rank, (of, _) in kept.items() if of < generation]:
                del kept[rank]

    def all(self, at_ns: int) -> Iterator[bytes]:
        """Yield `Ranks` messages with all that is known; one without ranks where nothing is."""
        return self._messages(at_ns, self._hellos.keys(), self._beats.keys(), self._summaries.keys())

    def changes(self, at_ns: int) -> Iterator[bytes]:
        """Yield `Ranks` messages with what has come since the last call."""
        hellos, beats, summaries = self._changed
        self._changed = (set(), set(), set())
        return self._messages(at_ns, hellos, beats, summaries)

    def _messages(
        self, at_ns: int, hellos: Iterable[int], beats: Iterable[int], summaries: Iterable[int]
    ) -> Iterator[bytes]:
        wanted = (set(hellos), set(beats), set(summaries))
        sources = (self._hellos, self._beats, self._summaries)
        parts: tuple[list[msgspec.Raw], list[msgspec.Raw], list[msgspec.Raw]] = ([], [], [])
        size, sent = 0, False
        for rank in sorted(set().union(*wanted)):
            found = [
                source[rank][1] if rank in ranks and rank in source else b""
                for ranks, source in zip(wanted, sources, strict=True)
            ]
            added = sum(map(len, found))
            if size and size + added > _ROOM:
                yield _encoded(at_ns, parts)
                parts, size, sent = ([], [], []), 0, True
            size += added
            for part, payload in zip(parts, found, strict=True):
                if payload:
                    part.append(msgspec.Raw(payload))
        if size or not sent:
            yield _encoded(at_ns, parts)


def _encoded(at_ns: int, parts: tuple[list[msgspec.Raw], list[msgspec.Raw], list[msgspec.Raw]]) -> bytes:
    hellos, beats, summaries = map(tuple, parts)
    return wire.encode(wire.EncodedRanks(at_ns, hellos, beats, summaries))
