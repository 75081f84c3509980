"""The slow rank by looks from outside, on simulated trainings whose truth is known."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from support.values.looked import S, Training

from ddptop.agent import wire
from ddptop.agent.observer.judge.judge import Judge

FORWARD = ("forward", 0.06, "train.py:33 slow")


def told(world: int, stretches: Iterable[wire.Sampled]) -> list[tuple[float, wire.Verdict]]:
    """Return the verdicts of each second with the seconds since the beginning."""
    judge = Judge(world)
    found: list[tuple[float, wire.Verdict]] = []
    for stretch in stretches:
        judge.sampled(stretch)
        if stretch.rank == world - 1:
            found += [(stretch.at_ns / S, verdict) for verdict in judge.verdicts(stretch.at_ns)]
    return found


@pytest.mark.parametrize("world", [2, 4])
def test_a_slow_rank_is_named_within_a_minute_with_its_line(world: int) -> None:
    """Of ten trainings whose rank 1 takes half as long again in one line, nine at least are told of within a minute."""
    right = 0
    for seed in range(10):
        found = told(world, Training(world, slow={1: FORWARD}, burst=0.1, seed=seed, until=60).stretches())
        assert {verdict.rank for _, verdict in found} <= {1}
        right += any((each.rank, each.phase, each.line) == (1, "forward", FORWARD[2]) for _, each in found)
    assert right >= 9


@pytest.mark.parametrize(
    "training",
    [
        pytest.param(Training(2, noise=0.4, until=200), id="unequal steps"),
        pytest.param(Training(8, noise=0.4, until=200), id="eight ranks"),
        pytest.param(Training(2, step_s=4.0, until=200), id="long steps"),
        pytest.param(Training(2, every={0: (50, 30)}, until=200), id="an evaluation of rank 0"),
        pytest.param(Training(2, every={0: (60, 5)}, until=200), id="a save of rank 0"),
        pytest.param(Training(2, slow={1: ("forward", 0.004, "train.py:33 slow")}, until=200), id="little slower"),
        pytest.param(Training(1, until=100), id="one rank"),
    ],
)
def test_no_rank_of_a_healthy_training_is_named(training: Training) -> None:
    """Whatever varies by itself, and time in which one rank evaluates or saves while the others wait."""
    for seed in range(4):
        training.seed = seed
        assert told(training.world, training.stretches()) == []


def test_a_rank_that_has_no_core_is_not_blamed_for_that() -> None:
    """On a crowded host the one that others keep from its core waits least; one that is slow besides is named."""

    def crowded(slow: dict[int, tuple[str, float, str]], *starved: float) -> set[int | None]:
        stretches = Training(2, slow=slow, until=120).stretches()
        found = told(2, (msgspec.structs.replace(each, starved=starved[each.rank]) for each in stretches))
        return {verdict.rank for _, verdict in found}

    assert crowded({1: FORWARD}, 0.05, 0.35) == set()
    assert crowded({1: FORWARD}, 0.2, 0.25) == {1}


def test_the_line_says_how_sure_it_is_and_what_the_rank_does_instead() -> None:
    """The words are those of the manual; no time of a step is told, since nobody knows one."""
    (*_, (_, verdict)) = told(2, Training(2, slow={1: FORWARD}, seed=3).stretches())
    assert verdict.text.startswith("rank 1 holds the group back: it waits ")
    assert verdict.text.endswith("): forward pass · train.py:33 slow")
    assert (verdict.cost_ms, verdict.since_step, verdict.kind) == (None, None, "slow_rank")
    # 60 of 180 ms: a third of the time, less what varies.
    assert verdict.share == pytest.approx(1 / 3, abs=0.08)


def test_a_rank_that_is_slow_no_more_is_named_no_more() -> None:
    """The verdict begins and ends about when the slowness does, and nobody is named after it."""
    slow = list(Training(2, slow={1: FORWARD}, until=90).stretches())
    well = list(Training(2, until=200, seed=5).stretches())
    later = [each for each in well if each.at_ns > 90 * S]
    times = [at for at, _ in told(2, [*slow, *later])]
    assert 30 < min(times) < 60
    assert 90 < max(times) < 130


def test_nobody_is_named_of_whom_no_looks_come_any_more() -> None:
    """An agent that has joined the ranks counts their steps; what was seen before it is over."""
    judge = Judge(2)
    for stretch in Training(2, slow={1: FORWARD}).stretches():
        judge.sampled(stretch)
    assert judge.verdicts(60 * S)
    assert judge.verdicts(90 * S) == ()
