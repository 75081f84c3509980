"""What the ranks of a small group publish, put together for onlookers: a message costs them more than what is in it.

This module knows no socket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from ddptop.agent import wire

PIECE: Final = 64 << 10
"""Bytes of the messages in one bundle, unless it is a single one: many bundles wait for an onlooker that does not read.
"""
_MOST: Final = wire.MAX_MESSAGE_BYTES - (4 << 10)
"""Bytes of a single message; records in a larger one are asked for as all that are missing."""


class Bundling:
    """The messages of ranks that go out with the next bundle."""

    def __init__(self, publish: Callable[[bytes], None]) -> None:
        """Hand each encoded bundle to `publish`."""
        self._publish = publish
        self._waiting: list[msgspec.Raw] = []
        self._bytes = 0

    def add(self, payload: bytes) -> None:
        """Take in a message of a rank, as it was sent."""
        if len(payload) > _MOST:
            return
        if self._bytes + len(payload) > PIECE:
            self.send()
        self._waiting.append(msgspec.Raw(payload))
        self._bytes += len(payload)

    def send(self) -> None:
        """Publish what has come since the last time."""
        if self._waiting:
            waiting, self._waiting, self._bytes = self._waiting, [], 0
            self._publish(wire.encode(wire.EncodedBundle(tuple(waiting))))
