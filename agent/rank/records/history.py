"""The last step records of a rank, for late subscribers; bounded in bytes.

An answer is made piece by piece, each after the one before it was sent: pieces that nobody reads
do not take memory of the process that trains.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from ddptop.agent.wire import MAX_RECORD_BYTES, EncodedSteps, Step, encode

PIECE: Final = 64 << 10
"""Bytes of records in one message of an answer; one record at least."""
_OVERHEAD: Final = 136
"""Bytes that the interpreter takes for a record beside those of its encoded form."""
_SLACK: Final = 1024
"""Empty entries of removed records before the list is shortened; a deque would be slow in its middle."""


class History:
    """The newest step records of one rank, in their encoded form."""

    def __init__(self, rank: int, max_bytes: int = 16 << 20, generation: int = 0) -> None:
        """Begin empty; `max_bytes` bounds the memory that the records take, the interpreter's own share included."""
        self._rank = rank
        self.generation = generation
        self._max_bytes = max_bytes
        self._bytes = 0
        self._records: list[tuple[int, bytes]] = []
        """(seq, encoded step); those before `_first` are removed."""
        self._first = 0

    def add(self, step: Step) -> bytes:
        """Add a record, and return it encoded; beyond the bound the oldest ones are removed.

        Raises:
            ValueError: it is larger than a record may be.
        """
        payload = encode(step)
        if len(payload) > MAX_RECORD_BYTES:
            raise ValueError(f"step {step.step} has a record of {len(payload)} bytes, {MAX_RECORD_BYTES} are allowed")
        self._records.append((step.seq, payload))
        self._bytes += len(payload) + _OVERHEAD
        # The last one stays, whatever the bound is.
        while self._bytes > self._max_bytes and self._first < len(self._records) - 1:
            seq, oldest = self._records[self._first]
            self._records[self._first] = (seq, b"")
            self._bytes -= len(oldest) + _OVERHEAD
            self._first += 1
        if self._first > _SLACK and self._first > len(self._records) // 16:
            del self._records[: self._first]
            self._first = 0
        return payload

    def since(self, first_seq: int, limit: int) -> Answer:
        """Return the newest `limit` records from `first_seq` on, as `wire.Steps` payloads, one at a time."""
        begin = max(self._index(first_seq), len(self._records) - max(0, limit))
        return Answer(self, self._seq(begin), self._seq(len(self._records)))

    def piece(self, first_seq: int, end_seq: int) -> tuple[bytes, int] | None:
        """Return one message of an answer, of records up to `end_seq`, and the number of the next; None at the end."""
        index, end = self._index(first_seq), self._index(end_seq)
        chosen: list[msgspec.Raw] = []
        size = 0
        while index < end and size < PIECE:
            payload = self._records[index][1]
            chosen.append(msgspec.Raw(payload))
            size += len(payload)
            index += 1
        if not chosen:
            return None
        return _joined(self._rank, chosen, self.generation), self._seq(index)

    def _index(self, seq: int) -> int:
        # A linear search through the records of an hour delayed the training by 4 ms.
        return bisect.bisect_left(self._records, (seq, b""), self._first)

    def _seq(self, index: int) -> int:
        if index < len(self._records):
            return self._records[index][0]
        return self._records[-1][0] + 1 if self._records else 0


class Answer(Iterator[bytes]):
    """The rest of an answer to `wire.Fill`; each message is made at its turn."""

    def __init__(self, history: History, first_seq: int, end_seq: int) -> None:
        self._history = history
        self._next_seq = first_seq
        self._end_seq = end_seq

    def __next__(self) -> bytes:
        made = self._history.piece(self._next_seq, self._end_seq)
        if made is None:
            raise StopIteration
        payload, self._next_seq = made
        return payload


def batches(rank: int, records: Iterable[bytes], generation: int) -> Iterator[bytes]:
    """Yield `wire.Steps` payloads of encoded records, each of at most `PIECE` bytes or one record."""
    chosen: list[msgspec.Raw] = []
    size = 0
    for record in records:
        if chosen and size + len(record) > PIECE:
            yield _joined(rank, chosen, generation)
            chosen, size = [], 0
        chosen.append(msgspec.Raw(record))
        size += len(record)
    if chosen:
        yield _joined(rank, chosen, generation)


def _joined(rank: int, records: list[msgspec.Raw], generation: int) -> bytes:
    return encode(EncodedSteps(rank, tuple(records), generation))
