"""Time without a step: what is said of it after how long."""

from __future__ import annotations

import pytest

from ddptop.agent.observer.judge.standstill import bearable_s, is_stalled, looked_at_s, stands


@pytest.mark.parametrize(
    ("step_ms", "longest_s"),
    [(1.4, 2.0), (20, 2.0), (50, 5.0), (100, 10.0), (700, 10.0), (1000, 10.0), (6000, 60.0)],
)
def test_a_run_stands_after_seconds_and_usual_steps(step_ms: float, longest_s: float) -> None:
    """After 2 s and 100 usual steps of a quick run; a slow one is stalled, and so stands, after 10 s and ten steps."""
    assert not stands(0.99 * longest_s, step_ms)
    assert stands(1.01 * longest_s, step_ms)


@pytest.mark.parametrize(("age", "step_ms"), [(None, 1.4), (8.0, None), (None, None)])
def test_what_is_not_known_does_not_stand(age: float | None, step_ms: float | None) -> None:
    """Before the first step nothing is usual."""
    assert not stands(age, step_ms)


@pytest.mark.parametrize("step_s", [0.001, 0.02, 0.3, 1.0, 4.0, 60.0])
def test_each_degree_comes_after_the_one_before(step_s: float) -> None:
    """Ranks are looked at before anything is news, and none is stalled of which the numbers are those of now."""
    looked_at = looked_at_s(step_s, has_stepped=True)
    assert looked_at < bearable_s(step_s, 0.0)
    ages = [1.1**each for each in range(80)]
    first = [
        next(age for age in ages if age > looked_at),
        next(age for age in ages if is_stalled(age, step_s, 10.0)),
    ]
    assert first == sorted(first)
    assert all(stands(age, 1e3 * step_s) for age in ages if is_stalled(age, step_s, 10.0))


def test_before_the_first_step_nothing_is_usual() -> None:
    """A start takes its time, and so does a step whose kind is not known."""
    assert looked_at_s(None, has_stepped=False) > looked_at_s(None, has_stepped=True) > 5
