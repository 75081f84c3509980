"""Looks from outside at groups that train, by a simulation of their steps: what ranks do at each moment is known."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ddptop.agent import wire

S = 1_000_000_000
WINDOW_S, EVERY_S = 3, 4
"""Seconds of looks, and from one beginning to the next: the looks are not to cost much."""
LINES: Mapping[str, str] = {
    "data": "train.py:20 load", "forward": "train.py:31 forward", "backward": "train.py:40 main",
    "optimizer": "train.py:41 main", "wait": "train.py:40 main", "other": "train.py:50 main",
}  # fmt: skip
USUAL: Mapping[str, float] = {"data": 0.05, "forward": 0.35, "backward": 0.4, "optimizer": 0.1, "other": 0.1}
"""Parts of a step without waiting."""


@dataclass
class Training:
    """A group whose ranks wait for each other at the end of each backward pass."""

    world: int = 2
    step_s: float = 0.12
    noise: float = 0.15
    """Standard deviation of the time of a phase, as a part of it."""
    slow: Mapping[int, tuple[str, float, str]] = field(default_factory=dict)
    """By rank, a phase, the seconds that it takes longer in each step, and the line that takes them."""
    every: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """By rank, an evaluation: every so many seconds, for so many; the others wait."""
    hz: float = 10.0
    until: float = 60.0
    seed: int = 0
    burst: float = 0.0
    """Standard deviation of a slowness that lasts for some seconds: of a machine under load."""

    def stretches(self) -> Iterator[wire.Sampled]:
        """Yield the looks of all ranks, three seconds of each four, in the order of their ends."""
        chance = random.Random(self.seed)
        spans: list[list[tuple[float, str, str]]] = [[] for _ in range(self.world)]
        """Of each rank, the ends of what it did."""
        ready, bursts, evaluated = [0.0] * self.world, [0.0] * self.world, dict.fromkeys(self.every, 0.0)
        while min(ready) < self.until:
            for rank, known in enumerate(spans):
                bursts[rank] = 0.98 * bursts[rank] + 0.2 * chance.gauss(0, self.burst)
                for phase in ("data", "forward", "backward"):
                    took = USUAL[phase] * self.step_s * max(0.2, 1 + chance.gauss(0, self.noise) + bursts[rank])
                    ready[rank] += took
                    known.append((ready[rank], phase, LINES[phase]))
                    of, more, line = self.slow.get(rank, ("", 0.0, ""))
                    if of == phase:
                        ready[rank] += more
                        known.append((ready[rank], phase, line))
            last = max(ready)
            for rank, known in enumerate(spans):
                known.append((last, "wait", LINES["wait"]))
                ready[rank] = last
                for phase in ("optimizer", "other"):
                    ready[rank] += USUAL[phase] * self.step_s
                    known.append((ready[rank], phase, LINES[phase]))
                pause, took = self.every.get(rank, (0.0, 0.0))
                if pause and ready[rank] - evaluated[rank] > pause:
                    ready[rank] += took
                    evaluated[rank] = ready[rank]
                    known.append((ready[rank], "other", "train.py:70 evaluate"))
        yield from _sampled(spans, self.hz, self.until, chance)


def _sampled(
    spans: list[list[tuple[float, str, str]]], hz: float, until: float, chance: random.Random
) -> Iterator[wire.Sampled]:
    at = [0] * len(spans)
    for begin in range(0, int(until) - WINDOW_S + 1, EVERY_S):
        for rank, known in enumerate(spans):
            phases: Counter[str] = Counter()
            lines: Counter[tuple[str, str]] = Counter()
            seen = set()
            for look in range(int(hz * WINDOW_S)):
                moment = begin + (look + chance.random()) / hz
                while at[rank] < len(known) - 1 and known[at[rank]][0] < moment:
                    at[rank] += 1
                _, phase, line = known[at[rank]]
                phases[phase] += 1
                lines[phase, line] += 1
                seen.add(at[rank])
            looks = sum(phases.values())
            still_s = known[at[rank] - 1][0] if len(seen) == 1 and at[rank] else None
            yield wire.Sampled(
                rank, (begin + WINDOW_S) * S, WINDOW_S * S, looks,
                {phase: count / looks for phase, count in phases.items()},
                tuple(wire.SampledLine(phase, line, count / looks) for (phase, line), count in lines.items()),
                None if still_s is None else round(still_s * S),
                cost_percent=1.0, blocks=len(seen),
            )  # fmt: skip
