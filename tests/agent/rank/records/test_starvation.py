"""Time without a core, as the kernel counts it, reaches the step records."""

from __future__ import annotations

import pytest

from ddptop.agent import wire
from ddptop.agent.rank.records.meter import Starvation


def step(seq: int, wall_ns: int) -> wire.Step:
    return wire.Step(seq, seq, 0, wall_ns, 0, 0, 0, 0, 0, wall_ns)


def test_what_was_counted_since_the_last_batch_is_spread_over_the_next(tmp_path):
    """By the time that the steps took; what was before the first step belongs to none."""
    counters = tmp_path / "schedstat"
    counters.write_text("5 1000 3\n")
    starvation = Starvation(counters)
    assert starvation.stamp([]) == []
    counters.write_text("9 5000 3\n")
    assert starvation.stamp([]) == []
    counters.write_text("9 5400 3\n")
    assert [each.starved_ns for each in starvation.stamp([step(1, 1000), step(2, 3000)])] == [100, 300]
    counters.write_text("9 6400 3\n")
    starvation.stamp([])
    counters.write_text("9 7400 3\n")
    assert [each.starved_ns for each in starvation.stamp([step(3, 8000)])] == [2000]


@pytest.mark.parametrize("content", [None, "", "nonsense here too"])
def test_where_the_kernel_does_not_tell_it_is_unknown(tmp_path, content):
    """Another system, or one without the counters: None, not 0."""
    counters = tmp_path / "schedstat"
    if content is not None:
        counters.write_text(content)
    starvation = Starvation(counters)
    assert [each.starved_ns for each in starvation.stamp([step(1, 1000)])] == [None]
