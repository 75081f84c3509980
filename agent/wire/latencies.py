"""The latency of all-reduces by the step records, computed alike in the agent and in the dashboard. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ddptop.agent.wire.telemetry import Step


def latencies_of(step: Step) -> list[int]:
    """Return the known durations of a step's all-reduces, in ns."""
    return [
        call.duration_ns
        for call in step.collectives
        if call.duration_ns is not None and call.op.startswith("all_reduce")
    ]


def percentiles(values: Collection[int]) -> tuple[int, int] | None:
    """Return the median and the 99th percentile, None where there are no values."""
    return percentiles_of_ordered(sorted(values))


def percentiles_of_ordered(ordered: Sequence[int]) -> tuple[int, int] | None:
    """Return the same of values that are in order already."""
    if not ordered:
        return None
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
