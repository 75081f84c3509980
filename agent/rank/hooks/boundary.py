"""The end of a step: the outermost of nested optimizer steps.

Every optimizer step is a step: a loop with two optimizers (a GAN) makes two records an
iteration, each with the phases that led to it.  A wrapper (ZeroRedundancyOptimizer, GradScaler)
and the optimizer in it make one step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddptop.agent.rank.session import Session

from ddptop.agent.rank.records.stamps import OPTIMIZER


class Boundary:
    """Ends the record of a step, and holds the rank at that point while the group is paused."""

    def __init__(self, session: Session, nested: Callable[[], bool]) -> None:
        """Begin outside of any step; `nested` says whether the present optimizer step is inside of another one."""
        self._session = session
        self._nested = nested
        self._outermost: int | None = None
        self._is_optimizer = False
        """Whether the outermost object is an optimizer; for a GradScaler, `abandon` is called when its step raises."""
        self._inner = False
        self.reached = False
        """A step has ended, at which the rank has not been held yet."""

    def begin(self, stepping: Any) -> None:
        """Note that an optimizer, or a wrapper of one, begins to step."""
        if self._outermost is not None:
            if self._outermost == id(stepping):
                # The last step raised, and torch called no hook.
                return
            if not self._is_optimizer or self._nested():
                self._inner = True
                return
            # Another that is not nested: here, too, the last step raised.
            self._session.stamps.leave()
        self._outermost, self._inner = id(stepping), False
        self._session.stamps.enter(OPTIMIZER)
        self._is_optimizer = hasattr(stepping, "param_groups")

    def end(self, stepping: Any) -> None:
        """Note the end of its step; that of the outermost one ends the record."""
        if self._outermost != id(stepping):
            return
        self._outermost = None
        self.reached = True
        stamps = self._session.stamps
        stamps.leave()
        if not self._is_optimizer:
            if not self._inner:
                stamps.skip()
        elif stamps.recording:
            try:
                # A learning rate in a tensor may be on the device; reading it would wait for the device.
                groups = stepping.param_groups
                if groups and isinstance(rate := groups[0].get("lr"), float | int):
                    stamps.rate(float(rate))
            except Exception as error:
                # Attributes of the script's optimizer may raise; the step counts all the same.
                self._session.faults.note("learning rate", error)
        self._session.cut()

    def count(self, stepping: Any) -> None:
        """Do the same for an optimizer in a step that is only counted, in as few calls as it takes."""
        session = self._session
        if self._outermost != id(stepping):
            session.checks.stepped(stepping)
            return
        self._outermost, self.reached = None, True
        stamps = session.stamps
        stamps.phases.pop()
        stamps.homes.pop()
        session.cut(stepping)

    def abandon(self, stepping: Any) -> None:
        """Note that its step has raised, and so does not count."""
        if self._outermost == id(stepping):
            self._outermost = None
            self._session.stamps.leave()

    def hold(self) -> None:
        """Count the step that has just ended, and wait here while the group is paused."""
        if self.reached:
            self.reached = False
            self._session.hold()
