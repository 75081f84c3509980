"""What step records say of the latency of all-reduces: the same for both ends of the wire. Pure."""

from __future__ import annotations

from collections.abc import Collection

from ddptop.agent.wire import Step


def latencies_of(step: Step) -> list[int]:
    """Return the durations of a step's all-reduces that are known, in ns."""
    return [
        call.duration_ns
        for call in step.collectives
        if call.duration_ns is not None and call.op.startswith("all_reduce")
    ]


def percentiles(values: Collection[int]) -> tuple[int, int] | None:
    """Return the median and the 99th percentile, None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
