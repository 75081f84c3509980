"""The numbers of what ranks tell: of records, of summaries, of ranks that begin anew, and of what is hostile."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from support.values.histories import Kept

from ddptop.agent import wire
from ddptop.agent.wire.steps.numbers import CUSTOM, MOST_NAMES, RECORDED
from ddptop.tui.model.metrics import metric_named


def step(number: int, loss: float | None = 1.0, **more: Any) -> wire.Step:
    return wire.Step(
        number, number, number * 10**7, 10**7, 10**6, 2 * 10**6, 3 * 10**6, 10**6, 2 * 10**6,
        10**6, loss, 32, **more,
    )  # fmt: skip


def test_numbers_are_those_of_the_records() -> None:
    """Times in ms, samples a second, memory as last read; what is not known is NaN, what is not finite infinite."""
    history = Kept(1)
    calls = tuple(
        wire.Collective(op, 0, took, 8, 1)
        for op, took in (("all_reduce", 10**6), ("all_reduce", 3 * 10**6), ("broadcast", 10**9), ("all_reduce", None))
    )
    history.rows.memory(0, 10**9, 1000)
    # At the peak a step would take 4 ms.
    history.rows.work(0, 8e11, 2e14)
    history.take(0, step(1, collectives=calls, lr=0.1, tokens=640))
    history.take(0, wire.Step(2, 2, 2, 10**7, 0, 0, 0, 0, None, 0, math.nan))
    found = {name: history.read(0, name) for name in RECORDED}
    expected = {
        "loss": 1, "step": 10, "data": 1, "forward": 2, "backward": 3, "optimizer": 1, "wait": 2, "other": 1,
        "all_reduce": 2, "samples": 3200, "tokens": 64_000, "learning_rate": 0.1, "mfu": 0.4, "memory": 1000,
    }  # fmt: skip
    assert {name: series.mean[0] for name, series in found.items()} == pytest.approx(expected)
    assert math.isinf(found["loss"].mean[1])
    assert all(np.isnan(found[name].mean[1]) for name in ("wait", "all_reduce", "samples", "tokens", "learning_rate"))
    assert all(metric_named(name).text(value) for name, value in expected.items())


def test_the_all_reduce_latency_is_a_median_wherever_it_comes_from() -> None:
    """One slow call among many moves neither a record's number nor a summary's, and the title says median."""
    took = [2 * 10**6] * 8 + [900 * 10**6]
    history, large = Kept(2), Kept(wire.EACH_RECORD + 1)
    calls = tuple(wire.Collective("all_reduce", 0, each, 8, 1) for each in took)
    history.take(0, step(1, collectives=calls))
    large.rows.summary(wire.Summary(1, 1, 1, 1, 1, 1, 10**7, 0, 0, 0, 0, None, 0, p50_ns=int(np.median(took))))
    assert history.read(0, "all_reduce").mean[0] == large.read(1, "all_reduce").mean[0] == 2
    assert "median" in metric_named("all_reduce").title


def test_a_rank_that_begins_anew_is_forgotten() -> None:
    """Its numbers go, and its next step may have any number; those of the others stay."""
    history = Kept(2)
    for number in (1, 2, 3):
        for rank in (0, 1):
            history.take(rank, step(number, metrics={"accuracy": 0.5}))
    history.rows.forget(0)
    assert history.span(0) is None
    assert len(history.read(0, "loss").steps) == len(history.read(0, CUSTOM + "accuracy").steps) == 0
    assert history.span(1) == (1, 3)
    history.take(0, step(1, loss=7.0))
    assert list(history.read(0, "loss").mean) == [7.0]


def test_names_of_the_script_are_cleaned_and_bounded() -> None:
    """Values by hostile and by too many names stay bounded and are counted; extremes break nothing."""
    history = Kept(2)
    hostile = step(1, metrics={"a\x1b[31m[/b]\n": 1e300, "": -math.inf, "ok": math.nan})
    came = wire.read_telemetry(wire.encode(wire.Steps(0, (hostile,))))
    assert isinstance(came, wire.Steps)
    history.take(0, came.steps[0])
    assert history.writer.names == ["a[/b] ".strip(), "?", "ok"]
    assert all(np.isinf(history.read(0, CUSTOM + name).mean).all() for name in history.writer.names)
    for number in range(2, 102):
        history.take(1, step(number, metrics={f"m{number}": 0.5}))
    assert len(history.writer.names) == MOST_NAMES
    assert history.writer.progress.refused == 100 + 3 - MOST_NAMES
    for seq, odd in enumerate((2**62, 0, -5, 1), 2):
        history.take(0, msgspec.structs.replace(step(odd, loss=5.0), seq=seq))
    assert history.span(0) == (1, 1)
    assert len(history.read(0, CUSTOM + "nothing of that name").steps) == 0


def test_a_restart_goes_on_where_the_ranks_had_come() -> None:
    """Steps of a new generation follow the old one's."""
    history = Kept(1)
    history.take(0, *[step(number) for number in range(1, 8)])
    history.take(0, step(1), generation=1)
    assert list(history.read(0, "loss").steps) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert history.writer.last == 8


def test_a_rank_that_counts_anew_has_no_steps_of_the_count_before() -> None:
    """What it counted before were no steps of the training; another rank that still counts so keeps its own."""
    history = Kept(2)
    for number in range(1, 41):
        for rank in (0, 1):
            history.take(rank, step(number, 7.0))
    for number in range(1, 13):
        history.take(0, msgspec.structs.replace(step(number, float(number)), seq=number + 40))
    assert history.span(0) == (1, 12)
    assert history.span(1) == (1, 40)
    read = history.read(0, "loss")
    assert (read.mean * read.count).sum() == sum(range(1, 13))


def test_what_a_rank_counted_before_is_gone_from_what_was_written_too() -> None:
    """Before and after it is folded into wider buckets; the numbers over time stay."""
    history = Kept(2)
    for number in range(1, 3001):
        for rank in (0, 1):
            history.take(rank, step(number, 7.0))
    history.write()
    history.take(0, *[msgspec.structs.replace(step(number, 1.0), seq=number + 3000) for number in range(1, 2001)])
    assert history.read(0, "loss").high.max() == 1.0
    assert history.read(1, "loss").count.sum() == 3000
    for number in range(3001, 9001):
        history.take(1, step(number, 7.0))
    assert history.read(0, "loss").count.sum() == 2000
    assert history.read(0, "loss").high.max() == 1.0
