"""The step records that a rank keeps for those who join late; bounded by bytes."""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice

import msgspec

from ddptop.agent.wire import Step, Steps, encode

CHUNK = 1000
"""Records in one message of an answer; keeps an answer below the socket's high-water mark."""


class _Joined(msgspec.Struct, frozen=True, array_like=True, tag="steps"):
    """`wire.Steps` made of records that are encoded already."""

    rank: int
    steps: tuple[msgspec.Raw, ...]
    generation: int


class History:
    """The newest step records of one rank, in their encoded form."""

    def __init__(self, rank: int, max_bytes: int = 32 << 20, generation: int = 0) -> None:
        self._rank = rank
        self._generation = generation
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        """(seq, encoded step)"""

    def add(self, step: Step) -> None:
        """Keep a record; the oldest ones go when the bound is reached."""
        payload = encode(step)
        self._kept.append((step.seq, payload))
        self._bytes += len(payload)
        while self._bytes > self._max_bytes:
            _, oldest = self._kept.popleft()
            self._bytes -= len(oldest)

    def since(self, first_seq: int, limit: int, earlier: int = 0) -> Iterator[bytes]:
        """Yield `wire.Steps` payloads of the records from `first_seq` on, oldest first.

        All of the newest `limit`, and of those before them `earlier`, evenly spread.
        """
        # Halving: to walk through an hour of them kept the training waiting for 4 ms.
        begin = bisect.bisect_left(self._kept, (first_seq, b""))
        whole = max(begin, len(self._kept) - max(0, limit))
        spread = range(begin, whole, max(1, math.ceil((whole - begin) / earlier))) if earlier > 0 else ()
        chosen = chain((self._kept[index] for index in spread), islice(self._kept, whole, None))
        while chunk := tuple(msgspec.Raw(payload) for _, payload in islice(chosen, CHUNK)):
            yield msgspec.msgpack.encode(_Joined(self._rank, chunk, self._generation))


def batch(rank: int, steps: list[Step], generation: int) -> bytes:
    """Return the payload of one publication."""
    return encode(Steps(rank, tuple(steps), generation))
