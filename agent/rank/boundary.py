"""Where a step ends: the outermost of the optimizer steps that are inside of each other.

Every optimizer step is a step: a loop with two optimizers (a GAN) makes two records an
iteration, each with the phases that led to it.  Wrappers (ZeroRedundancyOptimizer, GradScaler)
and what they wrap are one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddptop.agent.rank.session import Session

from ddptop.agent.rank.tape import OPTIMIZER


class Boundary:
    """Ends the record of a step, and holds the rank there while the group is paused."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._outermost: int | None = None
        self._inner = False
        self._reached = False

    def begin(self, stepping: Any) -> None:
        """Note that an optimizer, or what wraps one, begins to step."""
        if self._outermost is None:
            self._session.tape.enter(OPTIMIZER)
            self._outermost, self._inner = id(stepping), False
        elif self._outermost != id(stepping):
            # The same one again: its last step raised, and no hook was told of that.
            self._inner = True

    def end(self, stepping: Any) -> None:
        """Note that it has stepped; the record ends with the outermost."""
        if self._outermost != id(stepping):
            return
        self._outermost = None
        tape = self._session.tape
        tape.leave()
        if not self._inner and not hasattr(stepping, "param_groups"):
            tape.skip()
        self._reached = True
        try:
            groups = getattr(stepping, "param_groups", None)
            # A rate in a tensor may live on the device; reading it would wait for the device.
            if groups and isinstance(rate := groups[0].get("lr"), float | int):
                tape.rate(float(rate))
        except Exception as error:
            # What an optimizer says of itself must not cost the step its number.
            self._session.faults.note("learning rate", error)
        self._session.cut()

    def abandon(self, stepping: Any) -> None:
        """Note that it has raised: no step."""
        if self._outermost == id(stepping):
            self._outermost = None
            self._session.tape.leave()

    def hold(self) -> None:
        """Count the step that has just ended, and stay here while the group is paused."""
        if self._reached:
            self._reached = False
            self._session.hold()
