"""The history of a run for the views that look back: numbers by step and by time, and whole steps.

Of a live run its observer is asked for them, of an ended one its file, when a view looks at them. A frame refers to the
history and does not copy it: it grows while the frame is shown, and a view that draws from it says up to which moment
or step.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ddptop.agent.client.history.asked import Asked, Source
from ddptop.agent.client.history.numbers import AskedSteps, AskedTime
from ddptop.agent.client.history.steps import WholeSteps


class History:
    """All numbers of one run over its steps and over time, and the whole records of its newest steps."""

    def __init__(self, world: int, clock: Callable[[], float] = time.monotonic, source: Source | None = None) -> None:
        """Ask for what a plot shows at first, so that it is there when somebody looks."""
        self.world = world
        self.asked = Asked(world, clock, source)
        """The questions, and what was answered."""
        self.by_step = AskedSteps(self.asked)
        """The numbers over the steps."""
        self.by_time = AskedTime(self.asked)
        """The numbers over time."""
        self.steps = WholeSteps(self.asked)
        """The newest whole steps."""
        self.by_step.begin()

    @property
    def complete(self) -> bool:
        """False while an answer is awaited, or the observer itself has not read all."""
        return self.asked.is_read and self.asked.is_answered()
