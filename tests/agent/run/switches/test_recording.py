"""How many steps are recorded: by the budget, and by what the variables say."""

from __future__ import annotations

import random

import pytest

from ddptop.agent.run.switches.recording import (
    ALL,
    APART_NS,
    EVIDENCE,
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


@pytest.mark.parametrize("seed", range(400))
def test_the_budget_is_kept_with_as_many_records_as_possible(seed: int) -> None:
    """By the mean over all steps of one period, hook by hook.

    The budget is exceeded only where records would else be too far apart, and by no more than these may add.
    """
    chance = random.Random(seed)
    step, recorded = chance.uniform(0.3, 50) * MS, chance.choice((300, 3000)) * chance.uniform(0.07, 1) * US
    counted, record = recorded * chance.uniform(0.05, 0.5), chance.uniform(20, 300) * US

    def spent(every: int) -> tuple[float, float]:
        hooks = [recorded if number % every == 0 else counted for number in range(every)]
        return sum(hooks) / every / step, (sum(hooks) + record) / every / step

    def is_allowed(every: int) -> bool:
        thread, together = spent(every)
        at_least = 1.25 * counted / step
        in_budget = thread <= max(THREAD, at_least) and together <= max(ALL, at_least)
        counting = counted / step
        cheap = thread - counting <= EVIDENCE and together - counting <= 2 * EVIDENCE
        return in_budget or (cheap and 2 * every * step > APART_NS)

    every = needed(step, recorded, counted, record)
    assert every == next((each for each in POSSIBLE if is_allowed(each)), MOST)


def test_records_are_not_thinned_until_they_tell_nothing() -> None:
    """Where to count takes all of the budget there still is one record in 80 ms, if it is cheap."""
    assert needed(11 * MS, 200 * US, 95 * US, 100 * US) == 4
    assert needed(1 * MS, 200 * US, 95 * US, 100 * US) == 16


def test_dear_records_do_not_become_more() -> None:
    """Of hundreds of collectives in a step: the cost comes before what a verdict needs."""
    assert needed(11 * MS, 6 * MS, 2 * MS, 5 * MS) == 32


def test_where_no_counted_step_was_measured_records_are_thinned_and_not_given_up() -> None:
    """A guess holds until one was: not every step of 1 ms, nor the least there can be; all of 50 ms."""
    assert 4 <= needed(1 * MS, 66 * US, None, 50 * US) < MOST
    assert needed(50 * MS, 66 * US, None, 50 * US) == 1
