"""Text of unknown origin: what comes out fits a record, whatever goes in."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop.agent.text import clean, shorten, size


@pytest.mark.parametrize(
    "text",
    ["", "x" * 100, "x" * 3_000_000, "ä€😀" * 5000, "a\ud800b", "\ud800" * 5000],
    ids=lambda text: str(len(text)),
)
@pytest.mark.parametrize("limit", [64, 100, 2048])
def test_a_text_is_never_longer_than_its_limit_and_always_encodes(text: str, limit: int) -> None:
    """A record takes any text: bounded in bytes of UTF-8, both ends kept, the cut told."""
    short = shorten(text, limit)
    assert len(short.encode()) <= limit
    if len(text.encode("utf-8", "replace")) <= limit:
        assert short == text.encode("utf-8", "replace").decode()
    else:
        assert "cut out" in short


@given(text=st.text("aä€😀\n", min_size=100, max_size=400), limit=st.integers(64, 300))
@settings(max_examples=200)
def test_the_told_number_is_what_is_missing(text: str, limit: int) -> None:
    """Bytes of UTF-8, those of a character that was cut in two included."""
    short = shorten(text, limit)
    told = re.fullmatch(r"(.*) \[… ([\d,]+) bytes cut out …\] (.*)", short, re.DOTALL)
    if told is None:
        assert short == text
        return
    kept = len(told[1].encode()) + len(told[3].encode())
    assert int(told[2].replace(",", "")) + kept == len(text.encode())
    assert text.startswith(told[1])
    assert text.endswith(told[3])


@pytest.mark.parametrize("limit", range(0, 64, 3))
def test_where_no_cut_can_be_told_the_beginning_stays(limit: int) -> None:
    """The limit holds all the same, and no character is cut in two."""
    text = "😀" * 100
    short = shorten(text, limit)
    assert len(short.encode()) <= limit
    assert text.startswith(short) or "bytes cut out" in short


def test_both_ends_of_a_long_text_are_kept() -> None:
    """The first and the last words of a traceback are the ones that count."""
    short = shorten("Traceback (most recent call last)" + "x" * 100_000 + "ValueError: boom", 2048)
    assert short.startswith("Traceback (most")
    assert short.endswith("ValueError: boom")


@pytest.mark.parametrize("introducer", ["\x9d", "\x1b]", "\x90", "\x1bP"])
def test_a_string_without_an_end_ends_at_the_next_sequence(introducer: str) -> None:
    """What follows is text again, and a text of nothing but introducers is gone at once."""
    assert clean(f"a{introducer}0;owned\x1b[31mred") == "ared"
    assert clean(f"a{introducer}0;owned{introducer}again") == "a"
    # Where each of them looked for an end further on, this would take hours.
    assert clean(introducer * 200_000 + "\x1b", 200_000) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1 KiB"), (64 * 2**10, "64 KiB"), (812 * 2**20, "812 MiB"),
        (1000 * 2**20, "0.98 GiB"), (round(61.4 * 2**30), "61.4 GiB"), (999 * 2**30, "999 GiB"), (2**40, "1.00 TiB"),
    ],
)  # fmt: skip
def test_a_size_has_three_digits_and_a_unit(value: int, text: str) -> None:
    """In the unit that leaves at most three digits before the point."""
    assert size(value) == text
