"""The numbers of a whole run in bounded memory, against the same numbers kept whole."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ddptop.agent import wire
from ddptop.agent.observer.history.by_step import MOST_NAMES, HistoryByStep, capacity_for
from ddptop.agent.observer.history.series import Course
from ddptop.tui.model.metrics import CUSTOM, RECORDED, metric_named


def step(number: int, loss: float | None = 1.0, **more: Any) -> wire.Step:
    return wire.Step(
        number, number, number * 10**7, 10**7, 10**6, 2 * 10**6, 3 * 10**6, 10**6, 2 * 10**6,
        10**6, loss, 32, **more,
    )  # fmt: skip


def rows(steps: np.ndarray, values: np.ndarray, rank: int = 0) -> np.ndarray:
    return np.column_stack((np.full(len(steps), rank), steps, steps * 0.01, values))


@pytest.mark.parametrize("count", [1, 31, 32, 33, 1000, 65_537])
def test_buckets_hold_the_least_greatest_and_mean_of_their_steps(count: int) -> None:
    """However long the run, each bucket says of its steps what the steps themselves say; none is left out."""
    rng = np.random.default_rng(count)
    steps = np.cumsum(rng.choice([1, 1, 1, 2, 7], count)).astype(float)
    values = rng.normal(size=count)
    values[rng.random(count) < 0.1] = np.nan
    course = Course(16)
    for first in range(0, count, 97):
        course.extend(rows(steps[first : first + 97], values[first : first + 97]))
    read = course.read(0, 0, 0, math.inf)
    assert read.steps[-1] == steps[-1]
    assert np.all(np.diff(read.steps) > 0)
    assert read.count.sum() == np.sum(~np.isnan(values))
    ends = np.searchsorted(steps, read.steps)
    for index, (begin, end) in enumerate(zip([0, *(ends[:-1] + 1)], ends + 1, strict=True)):
        known = values[begin:end][~np.isnan(values[begin:end])]
        assert read.count[index] == len(known)
        assert read.at[index] == steps[end - 1] * 0.01
        if len(known):
            expected = known.min(), known.max(), known.mean()
            assert (read.low[index], read.high[index], read.mean[index]) == pytest.approx(expected, rel=1e-5, abs=1e-6)
        else:
            assert np.isnan([read.low[index], read.high[index], read.mean[index]]).all()


def test_ranks_that_share_arrays_are_as_they_are_alone() -> None:
    """However unevenly their steps come, each reads as from a course of its own, one by one or all at once."""
    rng = np.random.default_rng(4)
    together, alone = Course(8), [Course(8) for _ in range(5)]
    last = np.zeros(5)
    for _ in range(400):
        ranks = rng.integers(0, 5, rng.integers(1, 9)) // rng.integers(1, 5)
        chunk = []
        for rank in ranks:
            last[rank] += rng.choice([1, 1, 3])
            chunk.append(rows(last[rank : rank + 1], rng.normal(size=1), rank))
        together.extend(np.concatenate(chunk))
        for rank in set(ranks):
            alone[rank].extend(np.concatenate([row for row in chunk if row[0, 0] == rank]))
    whose, everybody = together.read_all(0, 0, math.inf)
    for rank, course in enumerate(alone):
        expected = course.read(rank, 0, 0, math.inf)
        of_all = everybody.part(whose == rank)
        order = np.argsort(of_all.steps)
        for mine, all_, theirs in zip(
            together.read(rank, 0, 0, math.inf).columns, of_all.columns, expected.columns, strict=True
        ):
            assert np.array_equal(mine, theirs, equal_nan=True)
            assert np.array_equal(all_[order], theirs, equal_nan=True)


def test_what_is_not_finite_stays_so_and_what_is_not_known_adds_nothing() -> None:
    """One infinite step makes its buckets infinite, in any company; unknown ones change no mean."""
    course = Course(1)
    values = np.array([1, np.nan, np.nan, np.nan, np.inf, np.inf, np.inf, 2, 3, 5, 7, np.nan, 1, 1, 1, 1, 1, 1])
    course.extend(rows(np.arange(1, 19).astype(float), values))
    read = course.read(0, 0, 0, math.inf)
    means = dict(zip(read.steps, read.mean, strict=True))
    assert means[8] == math.inf
    assert math.inf not in [mean for at, mean in means.items() if at > 8]
    finite = (np.isfinite(read.mean)) & (read.steps > 8)
    assert (read.mean * read.count)[finite].sum() == 15 + 6


def test_the_newest_steps_are_whole_and_older_ones_ever_wider() -> None:
    """A bucket is never wider than a sixteenth of its distance from the end, and the newest are single steps."""
    course = Course(16)
    steps = np.arange(1, 100_001).astype(float)
    course.extend(rows(steps, steps))
    read = course.read(0, 0, 0, math.inf)
    widths = np.diff(read.steps)
    assert np.all(widths[-15:] == 1)
    assert np.all(widths <= 1 + (steps[-1] - read.steps[1:]) / 15)


def test_a_day_of_steps_takes_what_it_is_said_to_take() -> None:
    """864,000 steps, a day of 100 ms each, in buckets: their number grows with the logarithm alone."""
    capacity, columns = capacity_for(4), len(RECORDED)
    course = Course(capacity)
    day = 864_000
    chunk = 48_000
    for first in range(1, day + 1, chunk):
        steps = np.arange(first, first + chunk).astype(float)
        course.extend(np.column_stack([steps * 0, steps, steps, *[steps] * columns]))
    assert course.nbytes <= 2 * capacity * (1 + math.log2(day / capacity)) * (16 + 16 * columns)
    assert course.nbytes < 1.3e6
    assert course.read(0, 0, 0, math.inf).count.sum() == day


def test_a_part_is_read_with_the_buckets_at_its_edges() -> None:
    """What is read between two steps is what lies there in the whole."""
    course = Course(16)
    steps = np.arange(1, 5001).astype(float)
    course.extend(rows(steps, np.sin(steps)))
    whole = course.read(0, 0, 0, math.inf)
    for first, last in ((1, 10), (100, 4000), (4990, 5000), (4999.5, 4999.6), (6000, 7000)):
        part = course.read(0, 0, first, last)
        begin = np.searchsorted(whole.steps, first)
        expected = whole.part(slice(begin, np.searchsorted(whole.steps, last) + 1))
        for mine, theirs in zip(part.columns, expected.columns, strict=True):
            assert np.array_equal(mine, theirs, equal_nan=True)


def test_numbers_are_those_of_the_records() -> None:
    """Times in ms, samples a second, memory as last read; what is not known is NaN, what is not finite infinite."""
    history = HistoryByStep(1)
    calls = tuple(
        wire.Collective(op, 0, took, 8, 1)
        for op, took in (("all_reduce", 10**6), ("all_reduce", 3 * 10**6), ("broadcast", 10**9), ("all_reduce", None))
    )
    history.take_memory(0, 1000)
    history.take(0, step(1, collectives=calls, lr=0.1))
    history.take(0, wire.Step(2, 2, 2, 10**7, 0, 0, 0, 0, None, 0, math.nan))
    found = {name: history.read(0, name) for name in RECORDED}
    expected = {
        "loss": 1, "step": 10, "data": 1, "forward": 2, "backward": 3, "optimizer": 1, "wait": 2, "other": 1,
        "all_reduce": 2, "samples": 3200, "learning_rate": 0.1, "memory": 1000,
    }  # fmt: skip
    assert {name: series.mean[0] for name, series in found.items()} == pytest.approx(expected)
    assert math.isinf(found["loss"].mean[1])
    assert all(np.isnan(found[name].mean[1]) for name in ("wait", "all_reduce", "samples", "learning_rate"))
    assert all(metric_named(name).text(value) for name, value in expected.items())


def test_the_all_reduce_latency_is_a_median_wherever_it_comes_from() -> None:
    """One slow call among many moves neither a record's number nor a summary's, and the title says median."""
    took = [2 * 10**6] * 8 + [900 * 10**6]
    history = HistoryByStep(2)
    calls = tuple(wire.Collective("all_reduce", 0, each, 8, 1) for each in took)
    history.take(0, step(1, collectives=calls))
    history.take_summary(wire.Summary(1, 1, 1, 1, 1, 1, 10**7, 0, 0, 0, 0, None, 0, p50_ns=int(np.median(took))))
    assert history.read(0, "all_reduce").mean[0] == history.read(1, "all_reduce").mean[0] == 2
    assert "median" in metric_named("all_reduce").title


def test_a_rank_that_begins_anew_is_forgotten() -> None:
    """Its numbers go, and its next step may have any number; those of the others stay."""
    history = HistoryByStep(2)
    for number in (1, 2, 3):
        for rank in (0, 1):
            history.take(rank, step(number, metrics={"accuracy": 0.5}))
    history.forget(0)
    assert history.span(0) is None
    assert len(history.read(0, "loss").steps) == len(history.read(0, CUSTOM + "accuracy").steps) == 0
    assert history.span(1) == (1, 3)
    history.take(0, step(1, loss=7.0))
    assert list(history.read(0, "loss").mean) == [7.0]


def test_names_of_the_script_are_cleaned_and_bounded() -> None:
    """Values by hostile and by too many names stay bounded and are counted; extremes break nothing."""
    history = HistoryByStep(2)
    hostile = step(1, metrics={"a\x1b[31m[/b]\n": 1e300, "": -math.inf, "ok": math.nan})
    came = wire.read_telemetry(wire.encode(wire.Steps(0, (hostile,))))
    assert isinstance(came, wire.Steps)
    history.take(0, came.steps[0])
    assert history.names == ["a[/b] ".strip(), "?", "ok"]
    assert all(np.isinf(history.read(0, CUSTOM + name).mean).all() for name in history.names)
    for number in range(2, 102):
        history.take(1, step(number, metrics={f"m{number}": 0.5}))
    assert len(history.names) == MOST_NAMES
    assert history.refused == 100 + 3 - MOST_NAMES
    for odd in (2**62, 0, -5, 1):
        history.take(0, step(odd, loss=5.0))
    assert history.span(0) == (1, 1)
    assert len(history.read(0, CUSTOM + "nothing of that name").steps) == 0


def test_a_restart_goes_on_where_the_ranks_had_come() -> None:
    """Steps of a new generation follow the old one's."""
    history = HistoryByStep(1)
    history.take(0, step(1))
    history.count_on(7)
    history.take(0, step(1))
    assert list(history.read(0, "loss").steps) == [1, 8]
    assert history.last == 8


def test_a_rank_that_counts_anew_has_no_steps_of_the_count_before() -> None:
    """What it counted before were no steps of the training; another rank that still counts so keeps its own."""
    history = HistoryByStep(2)
    for number in range(1, 41):
        for rank in (0, 1):
            history.take(rank, step(number, 7.0))
    for number in range(1, 13):
        history.take(0, step(number, float(number)))
    assert history.span(0) == (1, 12)
    assert history.span(1) == (1, 40)
    loss = list(RECORDED).index("loss")
    read = history._numbers("").course.read(0, loss, 0, math.inf)
    assert (read.mean * read.count).sum() == sum(range(1, 13))
