"""How many steps a rank records until the run's observer has chosen for all: what its first steps took decides.

The observer wants seconds of evidence from all ranks.  Of a short job that is a large part, and a rank may never have
an observer.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from typing import Final

from ddptop.agent.rank.records.stamps import Stamps
from ddptop.agent.run.switches.recording import needed
from ddptop.agent.wire import Step

AFTER_NS: Final = 500_000_000
"""Time of recorded steps after which the number is chosen."""
LEAST_STEPS: Final = 50
"""Steps that have to be recorded by then: the first ones are no usual ones."""
MOST_STEPS: Final = 4096
"""Newest steps that are remembered while the cost is not known."""


class OwnChoice:
    """Chooses once, for one rank, unless somebody else does so before; for use from the agent's thread."""

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps
        self._walls: deque[int] = deque(maxlen=MOST_STEPS)
        self._total_ns = 0
        self.is_over = False
        """True once the number was chosen, here or elsewhere."""

    def look(self, steps: Sequence[Step], record_ns: int | None) -> None:
        """Take in recorded steps; `record_ns` is what a record takes the agent's thread, None: not known yet."""
        if self.is_over:
            return
        self._walls.extend(step.wall_ns for step in steps)
        self._total_ns += sum(step.wall_ns for step in steps)
        cost = self._stamps.cost
        if len(self._walls) < LEAST_STEPS or self._total_ns < AFTER_NS or record_ns is None or cost.recorded_ns is None:
            return
        self._stamps.every = needed(statistics.median(self._walls), cost.recorded_ns, cost.counted_ns, record_ns)
        self.is_over = True
        self._walls.clear()
