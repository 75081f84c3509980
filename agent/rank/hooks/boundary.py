"""The end of a step: the outermost of nested optimizer steps, the last of several without a backward pass between.

A loop that makes a backward pass for each of two optimizers (a GAN) makes two records an
iteration, each with the phases that led to it.  A wrapper (ZeroRedundancyOptimizer, GradScaler)
and the optimizer in it make one step, and so do optimizers that step one after the other: which is the last of them
is known from the iteration before.  The steps inside of a backward pass are one step, at its end.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ddptop.agent.rank.hooks import losses
from ddptop.agent.rank.records.stamps import BACKWARD, OPTIMIZER, OTHER

if TYPE_CHECKING:
    from ddptop.agent.rank.session import Session

Hook = Callable[..., None]

_MOST_FOLLOWED: Final = 64


class Boundary:
    """Ends the record of a step, and holds the rank at that point while the group is paused."""

    __slots__ = (
        "_followed", "_follows", "_inner", "_is_inside", "_is_optimizer", "_key", "_last", "_nested", "_overflow",
        "_series", "_session", "alone", "inside", "moved", "outermost", "pending", "reached",
    )  # fmt: skip

    def __init__(self, session: Session, nested: Callable[[], bool]) -> None:
        """Begin outside of any step; `nested` says whether the present optimizer step is inside of another one."""
        self._session = session
        self._nested = nested
        self.outermost: int | None = None
        """Address of the object whose step it is."""
        self._is_optimizer = True
        """False where the outermost object is a GradScaler, for which `abandon` is called when its step raises."""
        self._inner = False
        self._overflow: Any = None
        """Tensor of a fused optimizer that a GradScaler steps in any case: zero where its gradients are finite."""
        self.reached = False
        """A step has ended, at which the rank has not been held yet."""
        self.moved = False
        """A backward pass has begun since an optimizer has stepped."""
        self.pending = False
        """An optimizer has stepped that others are expected to follow."""
        self.inside = False
        """An optimizer has stepped in this backward pass."""
        self.alone: int | None = None
        """Address of the optimizer that has made the last step by itself."""
        self._is_inside = False
        """The present step of an optimizer is inside of a backward pass."""
        self._key = 0
        """Address of the optimizer that steps, also where a GradScaler steps it."""
        self._last = 0
        """Of the one that has stepped last."""
        self._series: set[int] = set()
        """Of those that have stepped without a backward pass between."""
        self._follows = False
        """The present step of an optimizer follows that of another one without a backward pass between."""
        self._followed: set[int] = set()
        """Of those that another one has followed without a backward pass between."""

    def restart(self) -> None:
        """Follow another thread: what has stepped before has nothing to do with what steps now."""
        self._series, self.alone = set(), None

    def begin(self, stepping: Any, optimizer: Any = None) -> None:
        """Note that an optimizer, or a wrapper of this `optimizer`, begins to step."""
        if self.outermost is not None:
            if self.outermost == id(stepping):
                # The last step raised, and torch called no hook.
                return
            if not self._is_optimizer or self._nested():
                self._inner, self._overflow = True, getattr(stepping, "found_inf", None)
                return
            # Another that is not nested: here, too, the last step raised.
            self._session.stamps.leave()
        self._key = id(stepping if optimizer is None else optimizer)
        stamps = self._session.stamps
        self._is_inside = stamps.phases[-1] == BACKWARD
        if not self._is_inside:
            if self.moved or self._key in self._series:
                self._conclude()
                self._series, self._follows = set(), False
            elif self._series:
                self._follows = True
        self.outermost, self._inner, self._overflow = id(stepping), False, None
        stamps.enter(OPTIMIZER)
        self._is_optimizer = hasattr(stepping, "param_groups")

    def end(self, stepping: Any) -> None:
        """Note the end of its step; that of the outermost one ends the record."""
        if self.outermost != id(stepping):
            return
        stamps, is_optimizer = self._session.stamps, self._is_optimizer
        # First: the step counts even where a failed device raises in what follows.
        is_last = self._ends()
        self.reached = self.reached or is_last
        self._leave()
        if not is_optimizer:
            if not self._inner:
                stamps.skip(losses.Known(1.0))
            elif self._overflow is not None and (stamps.recording or self._overflow.is_cpu):
                found = losses.pending(sys.modules["torch"], self._overflow)
                if found is not None:
                    stamps.skip(found)
        elif stamps.recording:
            try:
                # A learning rate in a tensor may be on the device; reading it would wait for the device.
                groups = stepping.param_groups
                if groups and isinstance(rate := groups[0].get("lr"), float | int):
                    stamps.rate(float(rate))
            except Exception as error:
                # Attributes of the script's optimizer may raise; the step counts all the same.
                self._session.faults.note("learning rate", error)
        if is_last:
            self._session.end_step()

    def _ends(self) -> bool:
        """Take in the step that ends; return whether it ends a record."""
        if self._is_inside:
            self.inside, self.alone = True, None
            return False
        if self._follows and self.moved:
            # It has made backward passes in its step (LBFGS).
            self._follows, self._series = False, set()
        # Where the first of a series has ended the step, because nothing was known of the others, they do not again.
        is_late = self._follows and not self.pending
        if self._follows:
            self._remember(self._last)
        self._follows, self.moved, self._last = False, False, self._key
        self._series.add(self._key)
        self.pending = not is_late and self._key in self._followed
        is_last = not is_late and not self.pending
        self.alone = self._key if is_last and len(self._series) == 1 else None
        return is_last

    def _remember(self, key: int) -> None:
        if len(self._followed) >= _MOST_FOLLOWED:
            # A script may make new optimizers for each step.
            self._followed.clear()
        self._followed.add(key)

    def _conclude(self) -> None:
        """End the step where those that were expected have not followed."""
        if self.pending:
            self.pending = False
            self._followed.discard(self._last)
            self.reached = True
            self._session.end_step()

    def backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a backward pass, with the end of the step before it and that of the optimizers inside of it."""
        if self.pending and self.outermost is None:
            self._conclude()
            self.hold()
        if self._session.diagnoses.counting.is_under_way:
            self._session.diagnoses.counting.look()
        result = original(*args, **kwargs)
        if self.inside and self._session.stamps.phases[-1] != BACKWARD:
            self.inside, self.reached, self.alone = False, True, None
            self._session.end_step()
            self.hold()
        else:
            self.moved = True
        return result

    def abandon(self, stepping: Any) -> None:
        """Note that its step has raised, and so does not count."""
        if self.outermost == id(stepping):
            self._leave()

    def _leave(self) -> None:
        self.outermost, self._is_optimizer = None, True
        self._session.stamps.leave()

    def hold(self) -> None:
        """Count the step that has just ended, and wait here while the group is paused."""
        if self.reached:
            self.reached = False
            self._session.count()


def hooks_of_steps(session: Session, boundary: Boundary, compiling: Callable[[], bool]) -> tuple[Hook, Hook]:
    """Return the hooks of all optimizers, before and after their steps.

    Most steps that are only counted end without anything else to do.  For these each hook does by itself what
    `Boundary.begin`, `Boundary.end`, `Checks.boundary`, `Stamps.cut` and `Session.count` do for all others: a training
    step leaves nothing of ours in the processor's cache, so that a hook costs what it has to fetch, and one function is
    less to fetch than ten.

    The hooks refer to the parts of the session that they use, and to the lists of phases, which stay the same objects.
    """
    stamps, checks, gate, cost = session.stamps, session.checks, session.gate, session.stamps.cost
    quiet_steps = checks.quiet_steps
    phases, homes, clock, note = stamps.phases, stamps.homes, stamps.clock, session.faults.note
    main, ident = threading.main_thread().ident, threading.get_ident
    trainer: int | None = None

    def counts() -> bool:
        # An optimizer step of another thread is no step of the training. Where a script trains only in other threads
        # than the main one, the steps of the first of them that lives count.
        nonlocal trainer
        here = ident()
        if here != stamps.thread and stamps.in_backward and _has_ended(here):
            # torch runs the backward pass of what is on a device in threads that Python does not know.
            boundary.inside = True
            return False
        if here != trainer and (trainer is None or here == main or _has_ended(trainer)):
            trainer = stamps.thread = here
            boundary.restart()
        return here == trainer

    def before(stepping: Any, *_: Any) -> None:
        if compiling() or (ident() != trainer and not counts()):
            return
        began = cost.clock() if cost.sampling else 0
        if boundary.outermost is None and boundary.alone == id(stepping) and not stamps.recording:
            boundary.outermost = id(stepping)
            phases.append(OPTIMIZER)
            homes.append(OPTIMIZER)
            stamps.trail.append((clock(), OPTIMIZER))
        else:
            try:
                boundary.begin(stepping)
            except Exception as error:
                note("the beginning of a step", error)
        if began:
            cost.add(cost.clock() - began)
        if boundary.reached:
            boundary.hold()

    def after(stepping: Any, *_: Any) -> None:
        if compiling() or (ident() != trainer and not counts()):
            return
        began = cost.clock() if cost.sampling else 0
        step = gate.completed + 1
        if (
            step < stamps.eventful
            and checks.quiet
            and boundary.outermost == boundary.alone == id(stepping)
            and (quiet := quiet_steps.get(id(stepping))) is not None
            and quiet.optimizer() is stepping
        ):
            try:
                boundary.outermost = None
                boundary.moved = False
                quiet.steps += 1
                stamps.steps += 1
                stamps.completed_at = stamps.wall()
                stamps.keep(clock())
                phases.pop()
                homes.pop()
                phases[0] = OTHER
                if began:
                    cost.end(cost.clock() - began)
            except Exception as error:
                note("the end of a step", error)
            gate.completed += 1
            # Looked at only now: see `Gate.completed`.
            if gate.limit is not None:
                session.wait()
            return
        try:
            checks.stepped(stepping)
        except Exception as error:
            note("following the parameters", error)
        try:
            boundary.end(stepping)
        except Exception as error:
            note("the end of a step", error)
        if began:
            cost.add(cost.clock() - began)
        # Not guarded: a signal handler of the script may raise here during a hold, and the script must get that.
        if boundary.reached:
            boundary.hold()

    return before, after


def _has_ended(thread: int) -> bool:
    return all(each.ident != thread for each in threading.enumerate())
