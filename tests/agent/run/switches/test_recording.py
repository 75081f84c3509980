"""What the variables for records may say."""

from __future__ import annotations

import pytest

from ddptop.agent.run.switches.recording import (
    MEMORY_MIB,
    MEMORY_VARIABLE,
    VARIABLE,
    from_environment,
    memory_bytes,
    parse,
)


@pytest.mark.parametrize(("text", "meaning"), [("1", 1), (" 8 ", 8), ("64", 64)])
def test_what_is_read(text: str, meaning: int) -> None:
    """A power of two."""
    assert parse(text) == from_environment({VARIABLE: text}) == meaning


@pytest.mark.parametrize("text", ["0", "-1", "3", "65", "128", "1.5", "x", "٨", "9" * 5000])
def test_what_is_refused(text: str) -> None:
    """With what would be right."""
    with pytest.raises(ValueError, match="one of 1, 2, 4, 8, 16, 32, 64"):
        parse(text)


def test_without_the_variable_the_number_is_not_fixed() -> None:
    """Nor where it is empty."""
    assert from_environment({}) is from_environment({VARIABLE: " "}) is None


def test_the_memory_of_records() -> None:
    """In MiB; a number that cannot be is refused with what could."""
    assert memory_bytes({}) == MEMORY_MIB << 20
    assert memory_bytes({MEMORY_VARIABLE: "2"}) == 2 << 20
    for text in ("0", "-1", "1e3", "9" * 5000):
        with pytest.raises(ValueError, match="a number of MiB from 1 to 65,536"):
            memory_bytes({MEMORY_VARIABLE: text})
