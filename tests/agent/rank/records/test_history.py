"""What a rank keeps for late joiners is bounded, in order, and readable by anybody."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest
from support.values.messages import read_answered_steps

from ddptop.agent import wire
from ddptop.agent.rank.records.history import PIECE, History, batches

STEP = wire.Step(1, 1, 1, 10, 1, 2, 3, 1, 1, 2)


def kept(history: History, first: int, limit: int) -> list[int]:
    payloads = list(history.since(first, limit))
    assert all(len(payload) < PIECE + 1024 for payload in payloads)
    return [step.seq for payload in payloads for step in read_answered_steps(payload)]


def test_the_newest_records_come_oldest_first():
    """An answer holds what was asked for, in order, in chunks."""
    history = History(0)
    for seq in range(1, 2501):
        history.add(msgspec.structs.replace(STEP, seq=seq))
    assert kept(history, 0, 10_000) == list(range(1, 2501))
    assert kept(history, 2400, 10_000) == list(range(2400, 2501))
    assert kept(history, 0, 3) == [2498, 2499, 2500]
    assert kept(history, 2501, 10) == []


def test_a_gap_in_the_numbers_loses_nothing():
    """Where records were dropped before they were kept, all of those after the asked number still come."""
    history = History(0)
    for seq in (*range(1, 11), *range(51, 61)):
        history.add(msgspec.structs.replace(STEP, seq=seq))
    assert kept(history, 9, 100) == [9, 10, *range(51, 61)]
    assert kept(history, 30, 100) == list(range(51, 61))


def test_memory_is_bounded_by_bytes():
    """The oldest records go when the bound is reached: by the interpreter's own account it is kept within a tenth."""
    bound = 1 << 20
    tracemalloc.start()
    try:
        history = History(0, max_bytes=bound)
        taken = []
        for seq in range(1, 30_001):
            history.add(msgspec.structs.replace(STEP, seq=seq, step=seq))
            if seq >= 10_000 and not seq % 5000:
                taken.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert all(0.7 * bound < each < 1.1 * bound for each in taken), taken
    newest = kept(history, 0, 30_000)
    assert newest == list(range(newest[0], 30_001))


def test_the_newest_record_stays_whatever_the_bound_is():
    """A record that is larger than all the memory for records can still be asked for."""
    history = History(0, max_bytes=10)
    for seq in (1, 2):
        history.add(msgspec.structs.replace(STEP, seq=seq))
    assert kept(history, 0, 10) == [2]


CALL = wire.Collective("all_reduce", 1, 2, 3, 1, "0")


def test_a_record_is_bounded():
    """What is larger than a record may be is refused, and what was kept before stays."""
    history = History(0)
    history.add(STEP)
    with pytest.raises(ValueError, match="step 2 has a record of"):
        history.add(msgspec.structs.replace(STEP, seq=2, step=2, collectives=(CALL,) * wire.MAX_RECORD_BYTES))
    assert kept(history, 0, 10) == [1]


def test_publications_are_bounded_and_whole():
    """However much a rank has to say at once, no message is larger than a piece or one record, and nothing is lost."""
    history = History(3)
    sizes = [0, 5, 500, 5000, 1, 2000, 2000, 2000, *[40] * 500]
    steps = [msgspec.structs.replace(STEP, seq=seq, collectives=(CALL,) * size) for seq, size in enumerate(sizes, 1)]
    payloads = list(batches(3, map(history.add, steps), 2))
    read: list[wire.Step] = []
    for payload in payloads:
        message = wire.read_telemetry(payload)
        assert isinstance(message, wire.Steps)
        assert (message.rank, message.generation) == (3, 2)
        assert len(payload) < PIECE + 1024 or len(message.steps) == 1
        assert len(payload) < wire.MAX_MESSAGE_BYTES
        read += message.steps
    assert read == steps
    assert list(batches(3, [], 0)) == []
