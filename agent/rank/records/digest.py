"""Makes summaries of a rank's records, for views of many ranks. Pure, without a clock."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Final

from ddptop.agent.wire import Step, Summary
from ddptop.agent.wire.latencies import ALL_REDUCE, KINDS, latencies_of, percentiles

LATENCIES: Final = 512
"""Recent collectives of a kind over which the latencies of a summary are computed."""

METRICS: Final = 64
"""Names of metrics in a summary at most; further ones are left out."""


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
        samples = [step.samples for step in steps if step.samples is not None]
        tokens = [step.tokens for step in steps if step.tokens is not None]
        count = len(steps) + sum(step.counted for step in steps)
        recorded_ns = sum(step.wall_ns for step in steps)
        wall_ns = recorded_ns + sum(step.counted_ns for step in steps)

        def mean(values: Iterable[int]) -> int:
            """Return the mean of a phase over all steps: the same part of those that were only counted."""
            total = sum(values)
            return total // count if count == len(steps) else total * wall_ns // max(1, recorded_ns) // count

        def known_mean(values: Sequence[int | None]) -> int | None:
            known = [value for value in values if value is not None]
            return mean(known) if len(known) == len(values) else None

        return Summary(
            rank=self._rank,
            number=self._number,
            end_at_ns=last.end_at_ns,
            step=last.step,
            seq=last.seq,
            steps=count,
            wall_ns=wall_ns // count,
            data_ns=known_mean([step.data_ns for step in steps]),
            forward_ns=known_mean([step.forward_ns for step in steps]),
            backward_ns=known_mean([step.backward_ns for step in steps]),
            optimizer_ns=known_mean([step.optimizer_ns for step in steps]),
            wait_ns=known_mean([step.wait_ns for step in steps]),
            other_ns=mean(step.other_ns for step in steps),
            loss=self._loss,
            samples=sum(samples) / len(samples) if samples else None,
            starved_ns=known_mean([step.starved_ns for step in steps]),
            p50_ns=p50,
            p99_ns=p99,
            metrics=dict(self._metrics),
            generation=self.generation,
            copy_ns=known_mean([step.copy_ns for step in steps]),
            dominant=KINDS.index(most),
            dominant_p50_ns=dominant_p50,
            dominant_p99_ns=dominant_p99,
            tokens=sum(tokens) / len(tokens) if tokens else None,
        )
