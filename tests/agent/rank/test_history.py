"""What a rank keeps for late joiners is bounded, in order, and readable by anybody."""

from __future__ import annotations

import msgspec

from ddptop.agent import wire
from ddptop.agent.rank.history import PIECE, History

STEP = wire.Step(1, 1, 1, 10, 1, 2, 3, 1, 1, 2)


def kept(history: History, first: int, limit: int) -> list[int]:
    payloads = list(history.since(first, limit))
    assert all(len(payload) < PIECE + 1024 for payload in payloads)
    messages = [wire.read_answer(payload) for payload in payloads]
    return [step.seq for message in messages for step in message.steps]


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
    """The oldest records go when the bound is reached."""
    history = History(0, max_bytes=10 * len(wire.encode(STEP)))
    for seq in range(1, 100):
        history.add(msgspec.structs.replace(STEP, seq=seq))
    assert kept(history, 0, 1000) == list(range(90, 100))


def test_the_earlier_ones_are_thinned_out_evenly():
    """All of the newest, and of those before them as many as asked for, from the first to the last."""
    history = History(0)
    for seq in range(1, 2501):
        history.add(msgspec.structs.replace(STEP, seq=seq))
    messages = [wire.read_answer(payload) for payload in history.since(1, 100, 24)]
    seqs = [step.seq for message in messages for step in message.steps]
    assert seqs == [*range(1, 2401, 100), *range(2401, 2501)]
