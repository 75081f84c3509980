"""The end of a script as status and text."""

from __future__ import annotations

import traceback

import pytest

from ddptop.agent.rank.process import ending


def _quoted() -> str:
    try:
        int("x")
    except ValueError:
        return traceback.format_exc()
    raise AssertionError


@pytest.mark.parametrize(
    ("message", "brief"),
    [
        ("two\nlines", "RuntimeError: two\nlines"),
        ("needs y.\n\nOriginal traceback:\n{}", "RuntimeError: needs y. ValueError: {last}"),
        ("failed\n{}", "RuntimeError: failed ValueError: {last}"),
        ("Caught ValueError in DataLoader worker process 0.\nOriginal {}", "RuntimeError: Caught ValueError in "
         "DataLoader worker process 0. ValueError: {last}"),
    ],
)  # fmt: skip
def test_an_exception_is_told_without_the_stacks_that_its_message_quotes(message: str, brief: str) -> None:
    """With the last line of what it quotes; its own traceback is recorded whole."""
    try:
        raise RuntimeError(message.format(_quoted()))
    except RuntimeError as failure:
        error, trace = ending.texts(failure, failure.__traceback__)
    assert error == brief.format(last="invalid literal for int() with base 10: 'x'")
    assert trace is not None
    assert trace.count("Traceback (most") == 1 + message.count("{}")
