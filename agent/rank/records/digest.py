"""Makes summaries of a rank's records, for views of many ranks. Pure, without a clock."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from ddptop.agent.wire import Step, Summary
from ddptop.agent.wire.steps.latencies import ALL_REDUCE, KINDS, latencies_of, percentiles
from ddptop.agent.wire.steps.numbers import AMOUNTS, SPAN_FIELDS

LATENCIES: Final = 512
"""Recent collectives of a kind over which the latencies of a summary are computed."""

METRICS: Final = 64
"""Names of metrics in a summary at most; further ones are left out."""

_spans: Final = attrgetter(*SPAN_FIELDS)
_amounts: Final = attrgetter(*AMOUNTS)


class Digest:
    """The records of one rank since its last summary."""

    def __init__(self, rank: int, generation: int = 0) -> None:
        self._rank = rank
        self.generation = generation
        self._number = 0
        self._steps: list[Step] = []
        self._latencies: dict[str, deque[int]] = {kind: deque(maxlen=LATENCIES) for kind in KINDS}
        self._took = Counter({ALL_REDUCE: 0})
        self._loss: float | None = None
        self._metrics: dict[str, float] = {}

    def add(self, step: Step) -> None:
        """Add a record."""
        self._steps.append(step)
        for kind, took in latencies_of(step):
            self._latencies[kind].extend(took)
            self._took[kind] += sum(took)
        for name, value in step.metrics.items():
            if name in self._metrics or len(self._metrics) < METRICS:
                self._metrics[name] = value
        if step.loss is not None:
            self._loss = step.loss

    def close(self) -> Summary | None:
        """Return the summary of the records since the last one, None where there are none, and begin the next."""
        steps, self._steps = self._steps, []
        if not steps:
            return None
        self._number += 1
        last = steps[-1]
        p50, p99 = percentiles(self._latencies[ALL_REDUCE]) or (None, None)
        most = max(self._took, key=self._took.__getitem__)
        dominant_p50, dominant_p99 = percentiles(self._latencies[most]) or (None, None)
        count = len(steps) + sum(step.counted for step in steps)
        recorded_ns = sum(step.wall_ns for step in steps)
        wall_ns = recorded_ns + sum(step.counted_ns for step in steps)

        def span(values: Sequence[int | None]) -> int | None:
            """Return the mean of a span over all steps: the same part of those that were only counted."""
            known = [value for value in values if value is not None]
            if len(known) < len(values):
                return None
            total = sum(known)
            return total // count if count == len(steps) else total * wall_ns // max(1, recorded_ns) // count

        means: dict[str, Any] = dict(zip(SPAN_FIELDS, map(span, zip(*map(_spans, steps), strict=True)), strict=True))
        means |= zip(AMOUNTS, map(_amount, zip(*map(_amounts, steps), strict=True)), strict=True)
        return Summary(
            rank=self._rank,
            number=self._number,
            end_at_ns=last.end_at_ns,
            step=last.step,
            seq=last.seq,
            steps=count,
            wall_ns=wall_ns // count,
            loss=self._loss,
            p50_ns=p50,
            p99_ns=p99,
            metrics=dict(self._metrics),
            generation=self.generation,
            dominant=KINDS.index(most),
            dominant_p50_ns=dominant_p50,
            dominant_p99_ns=dominant_p99,
            **means,
        )


def _amount(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
