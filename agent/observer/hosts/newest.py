"""The newest `Hello`, `Beat` and `Summary` of each rank, as it sent them: what the observer of another host needs.

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
"""Bytes of the parts of one `Newest` message."""
_ORDER: Final[tuple[type, ...]] = (wire.Hello, wire.Beat, wire.Summary)

_Key = tuple[int, int]
"""Rank, and the place of the kind of message in `_ORDER`: who a rank is comes before how it is."""


class Newest:
    """The newest messages of each rank of the present generation."""

    def __init__(self) -> None:
        self._kept: dict[_Key, tuple[int, bytes]] = {}
        """Generation and message."""
        self._changed: set[_Key] = set()
        self._generation = 0

    def note(self, message: wire.Hello | wire.Beat | wire.Summary, payload: bytes) -> None:
        """Take in a message; one of a former generation is left out."""
        if type(message) is wire.Summary and len(payload) > LARGEST_SUMMARY:
            return
        generation = self._generation if message.generation is None else message.generation
        # That of the next generation may come before it is known that it has begun.
        if self._generation <= generation <= self._generation + 1:
            key = message.rank, _ORDER.index(type(message))
            self._kept[key] = generation, payload
            self._changed.add(key)

    def begin(self, generation: int) -> None:
        """Forget the former generations."""
        self._generation = generation
        self._kept = {key: kept for key, kept in self._kept.items() if kept[0] >= generation}

    def all(self) -> Iterator[bytes]:
        """Yield `Newest` messages with all that is known; none where nothing is."""
        return self._messages(self._kept)

    def changes(self) -> Iterator[bytes]:
        """Yield `Newest` messages with what has come since the last call."""
        changed, self._changed = self._changed, set()
        return self._messages(changed & self._kept.keys())

    def _messages(self, keys: Iterable[_Key]) -> Iterator[bytes]:
        parts: list[msgspec.Raw] = []
        size = 0
        for key in sorted(keys):
            payload = self._kept[key][1]
            if size + len(payload) > _ROOM:
                yield wire.encode(wire.Newest(tuple(parts)))
                parts, size = [], 0
            parts.append(msgspec.Raw(payload))
            size += len(payload)
        if parts:
            yield wire.encode(wire.Newest(tuple(parts)))
