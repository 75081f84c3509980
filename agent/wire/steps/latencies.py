"""The latency of collectives by the step records, computed alike in the agent and in the dashboard. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from ddptop.agent.wire.telemetry import Step

ALL_REDUCE: Final = "all_reduce"
KINDS: Final = (ALL_REDUCE, "all_gather", "reduce_scatter", "all_to_all")
"""Collectives that a latency is told of, each by the beginning of its functions' names."""


def latencies_of(step: Step) -> Iterator[tuple[str, list[int]]]:
    """Yield the kinds of a step's collectives, each with the durations that are known, in ns."""
    for kind in KINDS:
        took = [
            call.duration_ns for call in step.collectives if call.duration_ns is not None and call.op.startswith(kind)
        ]
        if took:
            yield kind, took


def percentiles(values: Collection[int]) -> tuple[int, int] | None:
    """Return the median and the 99th percentile, None where there are no values."""
    return percentiles_of_ordered(sorted(values))


def percentiles_of_ordered(ordered: Sequence[int]) -> tuple[int, int] | None:
    """Return the same of values that are in order already."""
    if not ordered:
        return None
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
