"""The numbers of all ranks over time, against the same sums over the records."""

from __future__ import annotations

import math
import random
from collections import defaultdict

import numpy as np
import pytest
from support.values.histories import Kept
from support.values.steps import BASE, SECOND, step

from ddptop.agent.wire import EACH_RECORD, Step, Summary
from ddptop.agent.wire.steps.numbers import MOST_COLUMNS, WIDTHS_S, columns_for
from ddptop.tui.model.metrics import METRICS


def test_a_bucket_is_the_mean_of_the_steps_that_ended_in_it() -> None:
    """For every number and width, compared with plain sums over the records."""
    rng = random.Random(3)
    history = Kept(2)
    wanted: dict[tuple[int, int], list[Step]] = defaultdict(list)
    end = 0.0
    for number in range(1, 2000):
        end += rng.uniform(0.05, 0.4)
        record = step(number, end, rng.uniform(40, 50), rng.uniform(1, 9), rng.choice([None, rng.random()]))
        history.take(1, record)
        for level, width in enumerate(WIDTHS_S):
            wanted[level, record.end_at_ns // SECOND // width].append(record)
    for level in range(len(WIDTHS_S)):
        last = int((BASE + end) // WIDTHS_S[level])
        for metric, of in {
            "step": lambda each: each.wall_ns / 1e6,
            "own": lambda each: (each.wall_ns - each.wait_ns) / 1e6,
            "other": lambda each: each.other_ns / 1e6,
            "loss": lambda each: each.loss,
        }.items():
            found = history.window(metric, level, last, 60)
            assert np.isnan(found[0]).all()
            for index, value in enumerate(found[1]):
                known = [of(each) for each in wanted[level, last - 59 + index] if of(each) is not None]
                assert value == pytest.approx(sum(known) / len(known), rel=1e-4) if known else math.isnan(value)


def test_a_step_longer_than_a_bucket_fills_those_it_lasted_for() -> None:
    """Also at the wider width; what lies before its beginning and after its end stays unknown."""
    history = Kept(1)
    history.take(0, step(1, 110.5, wall_ms=10_000))
    assert [math.isnan(value) for value in history.window("step", 0, BASE + 112, 15)[0]] == [True] * 3 + [
        False
    ] * 10 + [True] * 2
    assert np.nanmax(history.window("step", 1, (BASE + 112) // 4, 6)) == 10_000


def test_a_wide_bucket_is_the_mean_of_the_steps_that_ended_in_it_also_beside_a_long_one() -> None:
    """The seconds that a long step lasted for count next to nothing where other steps ended."""
    history = Kept(1)
    history.take(0, step(1, 2.5, wall_ms=2_400))
    for number in range(2, 12):
        history.take(0, step(number, 3.0 + number * 0.08))
    assert history.window("step", 1, BASE // 4, 1)[0, 0] == pytest.approx((2_400 + 10 * 80) / 11, rel=1e-4)


def test_a_pause_is_blank() -> None:
    """After a jump of hours only what was written since is there."""
    history = Kept(1)
    for number in range(1, 600):
        history.take(0, step(number, float(number)))
    history.take(0, step(600, 50_000.0))
    window = history.window("step", 0, BASE + 50_000, columns_for(1))[0]
    assert np.isfinite(window).sum() == 1
    assert math.isfinite(window[-1])


def test_readings_of_the_memory_leave_no_holes() -> None:
    """One a second, now a little late and now a little early; after the last there is nothing."""
    history = Kept(1)
    for number in range(20):
        history.rows.memory(0, round((BASE + number + (-0.01 if number % 2 else 0.01)) * SECOND), 2**30)
    assert np.isfinite(history.window("memory", 0, BASE + 30, 30)[0]).tolist() == [True] * 18 + [False] * 12


def test_steps_and_ready_made_means_fill_alike() -> None:
    """Ten steps one by one, or as one mean of ten, make the same bucket."""
    single, together = Kept(1), Kept(EACH_RECORD + 1)
    for number in range(1, 11):
        single.take(0, step(number, number * 0.09, loss=float(number)))
    ms = 10**6
    together.rows.summary(
        Summary(
            0, 1, round((BASE + 0.9) * SECOND), 5, 10, 10, 80 * ms, 20 * ms, 20 * ms, 20 * ms, 0, 20 * ms, 0, loss=5.5
        )
    )
    for metric in METRICS:
        one, other = (each.window(metric, 0, BASE, 1, 0).item() for each in (single, together))
        assert one == pytest.approx(other, nan_ok=True), metric


def test_not_known_and_not_finite_are_told_apart() -> None:
    """A loss of NaN is held as infinite, no loss as NaN; without collectives own time is not known."""
    history = Kept(3)
    history.take(0, step(1, 0.5, loss=math.nan))
    history.take(1, step(1, 0.5, loss=None))
    history.take(2, step(1, 0.5, wait_ms=None, loss=-1e308))
    losses = history.window("loss", 0, BASE, 1)[:, 0]
    assert math.isinf(losses[0])
    assert math.isnan(losses[1])
    assert math.isinf(losses[2])
    assert np.isnan(history.window("own", 0, BASE, 1)[:, 0]).tolist() == [False, False, True]


def test_a_phase_that_was_never_seen_is_not_known() -> None:
    """Neither of single steps nor of means; what else there is adds up to the step."""
    single, together = Kept(1), Kept(EACH_RECORD + 1)
    ms = 10**6
    for number in range(1, 11):
        single.take(
            0, Step(number, number, BASE * SECOND + number * 80 * ms, 80 * ms, None, None, 30 * ms, 0, 0, 50 * ms)
        )
    end = BASE * SECOND + 800 * ms
    together.rows.summary(Summary(0, 1, end, 5, 10, 10, 80 * ms, None, None, 30 * ms, 0, 0, 50 * ms))
    for history in (single, together):
        told = {metric: history.window(metric, 0, BASE, 1)[0, 0] for metric in METRICS}
        assert math.isnan(told["data"])
        assert math.isnan(told["forward"])
        assert (told["backward"], told["other"], told["step"]) == pytest.approx((30, 50, 80))


def test_no_number_from_outside_breaks_the_history() -> None:
    """Times beyond all sense, clocks that go back, numbers at the ends of their range."""
    history = Kept(1)
    for end, wall in ((2**64 - 1, 5), (-(2**63), 5), (0, 0), (BASE * SECOND, 2**63), (BASE * SECOND, -(2**63)), (1, 1)):
        history.take(0, Step(2**63, 2**63, end, wall, 2**63, 0, 0, 0, None, 0, 1e308))
    history.rows.memory(0, BASE * SECOND, 2**64 - 1)
    for metric in METRICS:
        assert history.window(metric, 0, BASE, 4).shape == (1, 4)
    assert history.window("number", 3, 1, 1, 0).shape == (1, 1)


@pytest.mark.parametrize("world", [1, 64, 1024, 4096])
def test_a_view_has_columns_for_its_width(world: int) -> None:
    """As many as any terminal has, fewer only of thousands of ranks."""
    assert 64 <= columns_for(world) <= MOST_COLUMNS == columns_for(1)


def test_a_bucket_that_is_wider_than_a_column_fills_those_that_it_is_of() -> None:
    """Where one scrolls back to what is held in buckets of four seconds, no column of one second is blank."""
    history = Kept(1)
    for number in range(1, 2000):
        history.take(0, step(number, float(number)))
    last = BASE + 100
    values = history.window("step", 0, last, 60)[0]
    assert np.isfinite(values).all()
    assert len(history.writer._levels) > 1
