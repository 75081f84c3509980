"""Groups of ranks that work, meet in an all-reduce and tell of it, with slowness put in: for tests of the judge."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from ddptop.agent import wire

MS = 1_000_000
USUAL = {"data": 2.0, "forward": 20.0, "backward": 40.0, "optimizer": 3.0, "other": 1.0}
TRANSFER = 8.0

Slowness = Callable[[int, int], dict[str, float]]
"""(step, rank) -> ms more, by phase."""


def healthy(step: int, rank: int) -> dict[str, float]:
    return {}


def slow(rank: int, phase: str, ms: float, since: int = 1, until: int = 10**9, every: int = 1) -> Slowness:
    def more(step: int, each: int) -> dict[str, float]:
        hit = each == rank and since <= step < until and (step - since) % every == 0
        return {phase: ms} if hit else {}

    return more


class Group:
    """Ranks that work, meet in one all-reduce a step, and tell of it."""

    def __init__(self, world: int, seed: int, noise: float = 0.08, **usual: float) -> None:
        self.world = world
        self.usual = {**USUAL, **usual}
        self.samples = [32] * world
        self.observed = True
        self.transfer = TRANSFER
        self.starved = [0.0] * world
        self.step = 0
        self.at_ns = 10**15
        """End of that step."""
        self._seed = random.Random(seed)
        self._noise = noise

    def steps(self, count: int, *more: Slowness) -> Iterator[tuple[int, wire.Step]]:
        """Yield the records of the next `count` steps."""
        for _ in range(count):
            self.step += 1
            phases = [self._phases(rank, more) for rank in range(self.world)]
            wall = max(sum(each.values()) for each in phases) + self.transfer
            self.at_ns += round(wall * MS)
            for rank, each in enumerate(phases):
                wait = wall - sum(each.values())
                yield rank, self._record(wall, wait, each, rank)

    def _phases(self, rank: int, more: tuple[Slowness, ...]) -> dict[str, float]:
        phases = {name: ms * max(0.2, self._seed.gauss(1, self._noise)) for name, ms in self.usual.items()}
        for each in more:
            for name, ms in each(self.step, rank).items():
                phases[name] += ms
        return phases

    def _record(self, wall: float, wait: float, phases: dict[str, float], rank: int) -> wire.Step:
        ns: dict[str, Any] = {f"{name}_ns": round(ms * MS) for name, ms in phases.items()}
        return wire.Step(
            seq=self.step, step=self.step, end_at_ns=self.at_ns, wall_ns=round(wall * MS),
            wait_ns=round(wait * MS) if self.observed else None, samples=self.samples[rank],
            starved_ns=round(self.starved[rank] * MS), **ns,
        )  # fmt: skip
