"""How many steps are recorded: by the budget, and by what the variables say."""

from __future__ import annotations

import random

import pytest

from ddptop.agent.run.switches.recording import (
    ALL,
    MEMORY_MIB,
    MEMORY_VARIABLE,
    MOST,
    POSSIBLE,
    THREAD,
    VARIABLE,
    from_environment,
    memory_bytes,
    needed,
    parse,
)

US = 1_000
MS = 1_000_000


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


@pytest.mark.parametrize("seed", range(200))
def test_the_budget_is_kept_with_as_many_records_as_possible(seed: int) -> None:
    """By the mean over all steps of one period, hook by hook; with half as few counted steps it would not be."""
    chance = random.Random(seed)
    step, recorded = chance.uniform(0.3, 50) * MS, chance.uniform(20, 300) * US
    counted, record = recorded * chance.uniform(0.05, 0.5), chance.uniform(20, 300) * US

    def spent(every: int) -> tuple[float, float]:
        hooks = [recorded if number % every == 0 else counted for number in range(every)]
        return sum(hooks) / every / step, (sum(hooks) + record) / every / step

    def is_kept(every: int) -> bool:
        thread, together = spent(every)
        return thread <= max(THREAD, 1.25 * counted / step) and together <= max(ALL, 1.25 * counted / step)

    every = needed(step, recorded, counted, record)
    assert every in POSSIBLE
    assert is_kept(every) or every == MOST
    assert every == 1 or not is_kept(every // 2)


def test_where_no_counted_step_was_measured_records_are_thinned_and_not_given_up() -> None:
    """A guess holds until one was: not every step of 1 ms, nor the least there can be; all of 50 ms."""
    assert 4 <= needed(1 * MS, 66 * US, None, 50 * US) < MOST
    assert needed(50 * MS, 66 * US, None, 50 * US) == 1
