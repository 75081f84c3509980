"""Notices losses and gradients of a rank that are not finite.

It checks, in the agent's thread, the loss of each backward pass, the norm that gradient clipping
computes, the sample of each bucket that is shared, and the steps that a GradScaler skips.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ddptop.agent.rank.records.stamps import StepStamps
from ddptop.agent.wire import Step

RECOVERY = 10
"""Good steps in a row after which the trouble is over; one bad batch in a few so makes one message, not many."""
SKIPS = 8
"""Skipped steps in a row from which on they are a trouble; fewer are a GradScaler's search for its scale."""


class Change(NamedTuple):
    """The beginning or the end of a trouble."""

    text: str
    level: str
    """As in `wire.Event`."""


class Health:
    """Follows one rank's numbers from step to step."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        """The present problem, one line, or None."""
        self._good = 0
        self._skipped = 0

    def check(self, stamped: StepStamps, step: Step) -> Change | None:
        """Check a step; return a change to publish, None where there is none."""
        wrong = self._wrong(stamped, step)
        if wrong is not None:
            self._good = 0
            if self.trouble is None:
                self.trouble = wrong
                return Change(wrong, "error")
        elif self.trouble is not None:
            self._good += 1 + step.counted
            if self._good >= RECOVERY:
                was, self.trouble = self.trouble, None
                return Change(f"finite again since step {step.step - self._good + 1:,} ({was})", "info")
        return None

    def _wrong(self, stamped: StepStamps, step: Step) -> str | None:
        skipped = stamped.skipped is not None and bool(stamped.skipped.read())
        self._skipped = self._skips(stamped) if skipped else 0
        if stamped.spoiled is not None:
            number, loss = stamped.spoiled
            return f"loss is {_spelled(loss)} since step {number:,}"
        lost = None if step.loss is None or math.isfinite(step.loss) else f"loss is {_spelled(step.loss)}"
        # A GradScaler skips a step whose gradients overflow, which does no harm.
        if skipped:
            if self._skipped < SKIPS:
                return None
            since = f"since step {step.step - self._skipped + 1:,}"
            return f"{lost or 'gradients are not finite'} {since}: GradScaler skips every step"
        if lost is not None:
            return f"{lost} since step {step.step:,}"
        numbers = [pending.read() for pending in stamped.gradients]
        bad = next((number for number in numbers if number is not None and not math.isfinite(number)), None)
        return None if bad is None else f"gradients are {_spelled(bad)} since step {step.step:,}"

    def _skips(self, stamped: StepStamps) -> int:
        """Return the number of steps that were skipped in a row, up to this one, which was."""
        return (self._skipped if stamped.skips == stamped.counted else 0) + stamped.skips + 1


def _spelled(value: float) -> str:
    return "nan" if math.isnan(value) else "infinite"
