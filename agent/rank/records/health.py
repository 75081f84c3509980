"""Says when what a rank computes is no longer a number: its loss, or its gradients.

Looks, in the agent's thread, at the loss of each backward pass, the norm that gradient clipping
computes, the sample of each bucket that is shared, and the steps that a GradScaler leaves out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ddptop.agent.rank.records.stamps import StepStamps
from ddptop.agent.wire import Step

RECOVERY = 10
"""Good steps in a row after which all is well again; so one bad batch in a few is one message, not many."""
SKIPS = 8
"""Steps left out in a row from which on it is no longer a GradScaler that looks for its scale."""


class Change(NamedTuple):
    """Something to tell once."""

    text: str
    level: str
    """As in `wire.Event`."""


class Health:
    """Follows one rank's numbers from step to step."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        """What is wrong, one line, or None."""
        self._good = 0
        self._skipped = 0

    def look(self, stamped: StepStamps, step: Step) -> Change | None:
        """Take in a step; return what is to be told now, if anything."""
        wrong = self._wrong(stamped, step)
        if wrong is not None:
            self._good = 0
            if self.trouble is None:
                self.trouble = wrong
                return Change(wrong, "error")
        elif self.trouble is not None:
            self._good += 1
            if self._good >= RECOVERY:
                was, self.trouble = self.trouble, None
                return Change(f"finite again since step {step.step - RECOVERY + 1} ({was})", "info")
        return None

    def _wrong(self, stamped: StepStamps, step: Step) -> str | None:
        self._skipped = self._skipped + 1 if stamped.skipped else 0
        if step.loss is not None and not math.isfinite(step.loss):
            return f"loss is {_spelled(step.loss)} since step {step.step}"
        # Under a GradScaler a step whose gradients overflow is left out and does no harm.
        numbers = [] if stamped.skipped else [pending.read() for pending in stamped.gradients]
        bad = next((number for number in numbers if number is not None and not math.isfinite(number)), None)
        if bad is not None:
            return f"gradients are {_spelled(bad)} since step {step.step}"
        if self._skipped >= SKIPS:
            return f"gradients are not finite since step {step.step - self._skipped + 1}: GradScaler skips every step"
        return None


def _spelled(value: float) -> str:
    return "nan" if math.isnan(value) else "infinite"
