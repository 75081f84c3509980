"""The newest looks from outside at a rank, added up; of a run, the mean over its ranks. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from typing import Final

from ddptop.agent.observer.judge.kinds.by_looks import Spent
from ddptop.agent.wire import Sampled, sampling_error
from ddptop.agent.wire.frames import ByLooks

WINDOW_NS: Final = 30_000_000_000
"""The time that is added up."""


class RecentLooks:
    """The newest stretches of one rank."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._stretches: deque[Sampled] = deque()

    def take(self, stretch: Sampled) -> None:
        """Take in a stretch; one of before the last is left out."""
        known = self._stretches
        if known and stretch.at_ns <= known[-1].at_ns:
            return
        known.append(stretch)
        while known[0].at_ns <= stretch.at_ns - WINDOW_NS:
            known.popleft()

    @property
    def last(self) -> Sampled | None:
        """The newest stretch."""
        return self._stretches[-1] if self._stretches else None

    def summary(self, now: float) -> ByLooks | None:
        """Return all of them together at a moment, in seconds since the epoch; None before the first look.

        A process that is stopped is not looked at: what it did before says nothing of now.
        """
        stretches = [each for each in self._stretches if each.at_ns > now * 1e9 - WINDOW_NS]
        last, spent = stretches[-1] if stretches else None, Spent()
        for each in stretches:
            spent.take(each)
        if last is None or not spent.looks:
            return ByLooks({}, {}, problem=last.problem) if last is not None and last.problem else None
        shares = {phase: looks / spent.looks for phase, looks in spent.phases.items()}
        (phase, where), most = max(spent.lines.items(), key=lambda each: each[1], default=(("", ""), 0.0))
        still = last.still_since_ns
        return ByLooks(
            shares,
            {phase: sampling_error(share, spent.blocks) for phase, share in shares.items()},
            spent.looks,
            where,
            phase,
            most / spent.looks if where else None,
            None if still is None else max(0.0, now - still / 1e9),
            last.still_at,
            sum(each.cost_percent for each in stretches) / len(stretches),
        )


def mean_of(ranks: Collection[ByLooks]) -> ByLooks | None:
    """Return the mean over ranks, whose errors are independent of each other; None of none."""
    if not ranks or not all(each.looks for each in ranks):
        return next((each for each in ranks if not each.looks), None)
    phases = dict.fromkeys(phase for each in ranks for phase in each.shares)
    return ByLooks(
        {phase: sum(each.shares.get(phase, 0.0) for each in ranks) / len(ranks) for phase in phases},
        {phase: math.hypot(*(each.errors.get(phase, 0.0) for each in ranks)) / len(ranks) for phase in phases},
        sum(each.looks for each in ranks),
        cost_percent=sum(each.cost_percent for each in ranks) / len(ranks),
    )
