"""The step records that a rank holds for those who join late; bounded by bytes.

An answer is made piece by piece, each when the one before it has been taken: what nobody reads
is not made, and the process that trains does not hold it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from ddptop.agent.wire import MAX_RECORD_BYTES, EncodedSteps, Step, encode

PIECE: Final = 64 << 10
"""Bytes of records in one message of an answer; one record at least."""
_SLACK: Final = 4096
"""Records that are gone and still have an entry in the list, at least; a deque would be slow in its middle."""


class History:
    """The newest step records of one rank, in their encoded form."""

    def __init__(self, rank: int, max_bytes: int = 32 << 20, generation: int = 0) -> None:
        self._rank = rank
        self._generation = generation
        self._max_bytes = max_bytes
        self._bytes = 0
        self._records: list[tuple[int, bytes]] = []
        """(seq, encoded step); those before `_first` are gone."""
        self._first = 0

    def add(self, step: Step) -> bytes:
        """Keep a record, and return it encoded; the oldest ones go when the bound is reached.

        Raises:
            ValueError: it is larger than a record may be.
        """
        payload = encode(step)
        if len(payload) > MAX_RECORD_BYTES:
            raise ValueError(f"step {step.step} has a record of {len(payload)} bytes, {MAX_RECORD_BYTES} are allowed")
        self._records.append((step.seq, payload))
        self._bytes += len(payload)
        while self._bytes > self._max_bytes:
            seq, oldest = self._records[self._first]
            self._records[self._first] = (seq, b"")
            self._bytes -= len(oldest)
            self._first += 1
        if self._first > _SLACK and self._first > len(self._records) // 2:
            del self._records[: self._first]
            self._first = 0
        return payload

    def since(self, first_seq: int, limit: int, earlier: int = 0) -> Answer:
        """Return `wire.Steps` payloads of the records from `first_seq` on, oldest first, one at a time.

        All of the newest `limit`, and of those before them `earlier`, evenly spread; of what is kept now.
        """
        begin = self._index(first_seq)
        whole = max(begin, len(self._records) - max(0, limit))
        stride = max(1, math.ceil((whole - begin) / earlier)) if earlier > 0 else 0
        if not stride:
            begin = whole
        return Answer(self, self._seq(begin), self._seq(whole), stride, self._seq(len(self._records)))

    def piece(self, first_seq: int, whole_seq: int, stride: int, end_seq: int) -> tuple[bytes, int] | None:
        """Return one message of an answer and the number that the next begins with, None where there is nothing left.

        Up to `whole_seq` only every `stride`-th record; from `end_seq` on none.
        """
        index, whole, end = self._index(first_seq), self._index(whole_seq), self._index(end_seq)
        chosen: list[msgspec.Raw] = []
        size = 0
        while index < end and size < PIECE:
            payload = self._records[index][1]
            chosen.append(msgspec.Raw(payload))
            size += len(payload)
            index = min(index + stride, whole) if index < whole else index + 1
        if not chosen:
            return None
        return _joined(self._rank, chosen, self._generation), self._seq(index)

    def _index(self, seq: int) -> int:
        # Halving: to walk through an hour of them kept the training waiting for 4 ms.
        return bisect.bisect_left(self._records, (seq, b""), self._first)

    def _seq(self, index: int) -> int:
        if index < len(self._records):
            return self._records[index][0]
        return self._records[-1][0] + 1 if self._records else 0


class Answer(Iterator[bytes]):
    """The rest of an answer to `wire.Fill`; each message is made when it is asked for."""

    def __init__(self, history: History, first_seq: int, whole_seq: int, stride: int, end_seq: int) -> None:
        self._history = history
        self._next_seq = first_seq
        self._bounds = (whole_seq, stride, end_seq)

    def __next__(self) -> bytes:
        made = self._history.piece(self._next_seq, *self._bounds)
        if made is None:
            raise StopIteration
        payload, self._next_seq = made
        return payload


def batches(rank: int, records: Iterable[bytes], generation: int) -> Iterator[bytes]:
    """Return publications of encoded records, each as large as a piece of an answer at most."""
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
