"""What `--check-parameters` and its environment variable may say."""

from __future__ import annotations

import pytest

from ddptop.agent.run.switches.checking import VARIABLE, Checking, from_environment, parse


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("100", Checking(100)),
        (" 1 ", Checking(1)),
        ("50,buffers=*.running_*", Checking(50, ("*.running_*",))),
        ("50, buffers=a, buffers=b", Checking(50, ("a", "b"))),
    ],
)
def test_what_is_read(text: str, meaning: Checking) -> None:
    """A number of steps, and patterns of buffers."""
    assert parse(text) == from_environment({VARIABLE: text}) == meaning


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "x", "٣", "9" * 5000, "5,", "5,buffers=", "5,6", "buffers=x"])
def test_what_is_refused(text: str) -> None:
    """With what would be right."""
    with pytest.raises(ValueError, match=r"a number of steps from 1 to .*100,buffers=\*\.running_\*"):
        parse(text)


def test_without_the_variable_nothing_is_compared_but_on_request() -> None:
    """Nor where it is empty."""
    assert from_environment({}) == from_environment({VARIABLE: " "}) == Checking(0)
