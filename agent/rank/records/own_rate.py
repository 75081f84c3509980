"""How many steps a rank records by its own choice: at first, and where its steps have become far longer.

Usually the run's observer chooses for all.  But it wants seconds of evidence, which of a short job is a large part and
of a delay that has just begun the part that explains it; and a rank may never have an observer.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from typing import Final

from ddptop.agent.rank.records.stamps import Stamps
from ddptop.agent.run.switches.recording import SPARE, are_too_rare, needed
from ddptop.agent.wire import Step

AFTER_NS: Final = 500_000_000
"""Time of recorded steps after which the number is chosen."""
LEAST_STEPS: Final = 50
"""Steps that have to be recorded by then: the first ones are no usual ones."""
MOST_STEPS: Final = 4096
"""Newest steps that are remembered while the cost is not known."""
LOOKS: Final = 3
"""Looks, each with steps since the one before it, that all have to find long steps: an evaluation is one of them."""
LONGER: Final = 2
"""So many times as long as usual are long steps.  What is usual is found anew after an order of another number, so that
a rank does not contradict the observer as long as nothing changes."""
DESCENT_NS: Final = 1_000_000_000
"""Time for which the number may go on to fall: what the first long looks find is partly the time before."""
REST_NS: Final = (5_000_000_000, 60_000_000_000)
"""Time from one own choice to the next, at least: twice as long after each one that follows within the longer time.
Steps that are long for a moment now and then are left to the observer."""
BACK_NS: Final = 10_000_000_000
"""Time after an own choice from which on the number follows the steps up again, as far as the one that was ordered.
An observer orders that earlier."""


class OwnRate:
    """The choices of one rank; for use from the agent's thread."""

    def __init__(self, stamps: Stamps, *, is_fixed: bool = False) -> None:
        """Choose nothing where the number `is_fixed`."""
        self._stamps = stamps
        self._is_fixed = is_fixed
        self._walls: deque[int] = deque(maxlen=MOST_STEPS)
        self._total_ns = 0
        self.is_over = is_fixed
        """True once the first number was chosen, here or elsewhere."""
        self._ordered = stamps.every
        """The number that was ordered last, or chosen first."""
        self._looked: tuple[int, int] | None = None
        """Steps and time of the last look that found steps; None where a look has to begin anew."""
        self._found: deque[float] = deque(maxlen=LOOKS)
        """Time of a step, in ns, between the newest looks."""
        self._usual_ns: float | None = None
        """The least median of `LOOKS` looks in a row since another number was ordered."""
        self._chosen_at: int | None = None
        """When the number was last lowered here, apart from lowering it further."""
        self._rest_ns = REST_NS[0]

    def order(self, every: int) -> None:
        """Record one step in so many, because the observer says so: it sees the whole group."""
        self.is_over = True
        self._walls.clear()
        self._ordered = every
        if every != self._stamps.every:
            self._stamps.every = every
            self._forget()
            self._usual_ns = None

    def begin(self, steps: Sequence[Step], record_ns: int | None) -> None:
        """Take in recorded steps, and choose the first number as soon as they show it.

        Args:
            steps: those since the last call.
            record_ns: what a record takes the agent's thread; None: not known yet.
        """
        if self.is_over:
            return
        self._walls.extend(step.wall_ns for step in steps)
        self._total_ns += sum(step.wall_ns for step in steps)
        if len(self._walls) < LEAST_STEPS or self._total_ns < AFTER_NS:
            return
        every = self._needed(statistics.median(self._walls), record_ns)
        if every is not None:
            self._stamps.every = self._ordered = every
            self.is_over = True
            self._walls.clear()

    def look(self, record_ns: int | None, *, is_held: bool) -> None:
        """Look how long the steps are by now, some times a second, and record more where they have become far longer.

        Args:
            record_ns: as for `begin`.
            is_held: True where the training thread is held at a boundary, or will be.
        """
        if not self.is_over or self._is_fixed:
            return
        if is_held:
            self._forget()
            return
        steps, now = self._stamps.steps, self._stamps.clock()
        if self._looked is None:
            self._looked = steps, now
        if steps == self._looked[0]:
            return
        self._found.append((now - self._looked[1]) / (steps - self._looked[0]))
        self._looked = steps, now
        if len(self._found) == LOOKS:
            self._weigh(now, record_ns)

    def _weigh(self, now: int, record_ns: int | None) -> None:
        step_ns, every = statistics.median(self._found), self._stamps.every
        self._usual_ns = usual_ns = min(step_ns, self._usual_ns or step_ns)
        if min(self._found) >= LONGER * usual_ns and are_too_rare(every, step_ns):
            wanted = self._needed(step_ns, record_ns, SPARE)
            if wanted is not None and wanted < every and self._may_choose(now):
                self._stamps.every = wanted
        elif every < self._ordered and self._chosen_at is not None and now - self._chosen_at >= BACK_NS:
            wanted = self._needed(step_ns, record_ns)
            if wanted is not None and wanted > every:
                self._stamps.every = min(wanted, self._ordered)

    def _may_choose(self, now: int) -> bool:
        since = None if self._chosen_at is None else now - self._chosen_at
        if since is None or since >= self._rest_ns:
            shortest, longest = REST_NS
            self._rest_ns = shortest if since is None or since > longest else min(2 * self._rest_ns, longest)
            self._chosen_at, since = now, 0
        return since <= DESCENT_NS

    def _needed(self, step_ns: float, record_ns: int | None, part: float = 1.0) -> int | None:
        cost = self._stamps.cost
        if record_ns is None or cost.recorded_ns is None:
            return None
        return needed(step_ns, cost.recorded_ns, cost.counted_ns, record_ns, part)

    def _forget(self) -> None:
        self._looked = None
        self._found.clear()
