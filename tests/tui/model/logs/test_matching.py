"""Which entries are wanted, and which parts of a log need not be read for them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop.agent.client.logs.entries import Entries
from ddptop.agent.client.logs.lines import Level, read_line
from ddptop.agent.client.logs.logfile import RawLine
from ddptop.agent.client.logs.matching import ALL, Wanted, places

LINES = (
    b"plain", b"ERROR x", b"[W1123 03:50:12.25 x.cpp:1] Slow", b"E1123 03:50:12 1 x] y", b"WARNING: z", b"INFO epoch",
    b"Traceback (most recent call last):", b"  File", b"torch.OutOfMemoryError: no", b"KeyboardInterrupt",
    b"train.py: error: no", b"x.py:1: UserWarning: w", b"\x1b[31mERR\x1b[0mOR: red", b"sl\x07ow", "Straße".encode(),
    b"Fatal Python error: x", b"terminate called after y", b"ExceptionGroup: x", b"FATAL",
    b"asyncio.exceptions.CancelledError",
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(LINES), max_size=6),
    st.sampled_from([None, Level.INFO, Level.WARNING, Level.ERROR]),
    st.sampled_from(["", "slow", "error", "straße", "a b", "no", "x] y"]),
)
def test_no_wanted_line_is_passed_over(lines: list[bytes], level: Level | None, text: str) -> None:
    """A part of a log in which by its bytes nothing can be wanted has nothing that is, read line by line."""
    wanted = Wanted(level, text)
    found = [entry for line in lines for entry in Entries(0).add([read_line(RawLine(0, 1, line), 2e9)])]
    if any(wanted.takes(entry) for entry in found):
        assert wanted.may_be_in(b"\n".join(lines))


def test_most_parts_of_a_log_are_passed_over() -> None:
    """Without the words, or without any word of the level, no line is looked at."""
    data = b"step 1 loss 0.5\n" * 1000
    assert not Wanted(text="nccl timeout").may_be_in(data)
    assert not Wanted(Level.WARNING).may_be_in(data)
    assert not Wanted(Level.ERROR).may_be_in(data + b"WARNING: x\n")
    assert ALL.may_be_in(data)


def test_places_are_those_of_the_text() -> None:
    """In any case; where lower case has another length, none are told rather than wrong ones."""
    assert places("Loss LOSS lo", "loss") == [(0, 4), (5, 9)]
    assert places("a.b axb A.B", "a.b") == [(0, 3), (8, 11)]
    assert places("İx x", "x") == []
    assert places("abc", "") == []
