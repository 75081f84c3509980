"""The gate at the step boundary, where a rank can be held without leaving a collective half done.

A pause has two phases, because ranks are up to a step apart.  Each rank first promises not
to pass its current step and returns the number of that step; the observer commits the largest number.  The hold is
first under a lease: it lapses unless the observer renews it, so that the training goes on when the observer dies.
Once it is kept, it lasts until `resume`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar, cast

from ddptop.agent.wire import Holding

_TOLD_S: Final = 0.3
"""Seconds that a held thread waits at most until that was said."""
_Outcome = TypeVar("_Outcome")


class GateError(Exception):
    """A refused command; the text is the reason, one line."""


class Gate:
    """Holds the training thread at a step boundary. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.lock = threading.RLock()
        """Held while the gate changes; reentrant."""
        self._changed = threading.Condition(self.lock)
        self.news: Callable[[], None] = _nobody
        """Called by the training thread where it has come to the hold, or has done its work there."""
        self.limit: int | None = None
        """The step at which the rank is or will be held, None where the gate is open; changes under the lock."""
        self._expires: float | None = None
        self._lease_s = 0.0
        self._token: str | None = None
        """Of the action under whose lease the rank is; None: under none."""
        self._kept: str | None = None
        """Of the action that the present hold without a lease is of."""
        self._work: Callable[[], object] | None = None
        """Work for the held thread, which has not begun it."""
        self._name: str | None = None
        """Of the work that was asked for last."""
        self._doing = ""
        """A few words for it; empty where nothing was asked for under the present lease."""
        self._working = False
        self._outcome: object = None
        """Of that work, None before it is done."""
        self.untold: object = None
        """The same until whoever has asked for the work gets it: an observer may be killed before."""
        self.completed = 0
        """Steps completed. The training thread counts a step, without the lock, and then waits where there is a
        `limit`."""
        self.held_at_ns: int | None = None
        """Time since which the training thread waits in `wait`; wall clock."""
        self.held_up: tuple[str, int] | None = None
        """The work of ours by which the training thread is held up, and since when; None: there is none."""
        self.was_held_up = ("", 0)
        """The work before, and the time that it took."""
        self.is_told = threading.Event()
        """Set once a sign of life has said that the rank is held for some work."""
        self.released_at_ns: int | None = None
        """Time at which it was last let go from there; wall clock."""
        self.ended_by: str | None = None
        """Author of the stop; the script ends at this boundary."""

    def wait(self) -> bool:
        """Wait while the gate is closed for the step that was counted last; return whether there was a wait.

        The training thread calls this at the end of a step. Signal handlers of the script run during the wait.
        """
        waited = False
        try:
            while self.stand():
                waited = True
                with self.lock:
                    if self._is_closed and self._work is None:
                        self._changed.wait(self._patience())
        finally:
            # An exception may have ended the wait.
            with self.lock:
                self._leave()
        return waited

    def stand(self) -> bool:
        """Stand at the gate for a moment, and do there what is asked for; return False where it is open."""
        with self.lock:
            self._lapse()
            if not self._is_closed:
                self._leave()
                return False
            if self.held_at_ns is None:
                self.held_at_ns = time.time_ns()
                self.news()
            work, self._work = self._work, None
            self._working = work is not None
        if work is not None:
            outcome = work()
            with self.lock:
                self._outcome = self.untold = outcome
                self._working = False
                self._renew()
                self.news()
        return True

    @property
    def _is_closed(self) -> bool:
        return self.limit is not None and self.completed >= self.limit and self.ended_by is None

    def _leave(self) -> None:
        self._note_release()
        self.held_at_ns, self._working = None, False

    def renew(self) -> None:
        """Open the gate in a forked child, where nobody lets go of a lock that another thread held at the fork.

        The hooks refer to this gate, so that another one cannot take its place.
        """
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self.limit = self._expires = self._token = self._work = None
        self.news = _nobody

    def recount(self) -> None:
        """Count from the first step again. A pause that is under way lapses: its step is one of the count before."""
        with self.lock:
            self.completed = 0
            self._open()

    def promise(self, token: str, lease_s: float) -> int:
        """Promise not to pass the current step; return its number.

        One action goes on at a time: the lease of another one is of an observer that is gone, and ends.

        Args:
            token: of the action.
            lease_s: seconds after which the promise lapses.

        Raises:
            GateError: the rank is paused already, or is being ended.
        """
        with self.lock:
            self._lapse()
            if self.ended_by is not None:
                raise GateError(f"it is being ended by {self.ended_by}")
            if self.limit is not None and self._token is None:
                raise GateError(f"already paused at step {self.limit:,}")
            limit = self._close_after_this_step() if self.limit is None else self.limit
            if token != self._token:
                self._doing = ""
            self._token, self._lease_s = token, lease_s
            self._renew()
            return limit

    def _close_after_this_step(self) -> int:
        """Hold the rank at the end of its present step, and return the number of that step.

        The training thread first counts a step, and then looks for a limit. So a limit that is there before the step is
        counted is seen; and where the step was counted meanwhile, that shows here.
        """
        while True:
            self.limit = limit = self.completed + 1
            if self.completed < limit:
                return limit

    def commit(self, token: str, step: int, lease_s: float) -> None:
        """Let the rank run up to `step` and hold it there, under a lease that begins anew.

        Raises:
            GateError: the promise has lapsed, or `step` is before the promised one.
        """
        with self.lock:
            self._lapse()
            if self.limit is None or token != self._token:
                raise GateError("the promise has lapsed")
            if step < self.limit:
                raise GateError(f"step {step:,} is before the promised step {self.limit:,}")
            self.limit, self._lease_s = step, lease_s
            self._renew()
            self._changed.notify_all()

    def keep(self, token: str) -> None:
        """Let the hold of an action last until `resume`.

        Raises:
            GateError: the promise has lapsed.
        """
        with self.lock:
            self._lapse()
            if self.limit is None or token not in (self._token, self._kept):
                raise GateError("the promise has lapsed")
            self._token, self._expires, self._kept = None, None, token
            self._changed.notify_all()

    def advance(self, step: int) -> None:
        """Move a hold without a lease to the end of `step`; an earlier step changes nothing.

        Raises:
            GateError: there is no such hold.
        """
        with self.lock:
            if not self.is_paused:
                raise GateError("not paused")
            if self.limit is not None and step > self.limit:
                self.limit = step
                self._note_release()
                self._changed.notify_all()

    def resume(self, token: str | None = None) -> None:
        """Open the gate, unless the script is being ended; with a token only where it is under that action's lease."""
        with self.lock:
            if token is None or token == self._token:
                self._open()

    def end(self, who: str) -> None:
        """End the script at this boundary, or at the next one that it reaches."""
        with self.lock:
            self.ended_by = who
            self.limit = self.limit or self.completed
            self._token = self._expires = self._kept = None
            self._changed.notify_all()

    def do(self, token: str, name: str, doing: str, work: Callable[[], _Outcome]) -> _Outcome | None:
        """Have the held training thread do `work`, once for a name; return the outcome, None until it is known.

        Args:
            token: of the action.
            name: of the work, the same whenever it is asked for.
            doing: a few words for it.
            work: returns anything but None.

        Raises:
            GateError: the rank is not held, or under the lease of another action, or has other work; or the script
                has broken it off by an exception.
        """
        with self.lock:
            self._lapse()
            if name == self._name and self._outcome is not None:
                self.untold = None
                self._renew()
                return cast(_Outcome, self._outcome)
            if self._token not in (None, token):
                raise GateError("the promise has lapsed")
            if not self.held:
                raise GateError("not held; the run goes on")
            self._renew()
            is_under_way = self._work is not None or self._working
            if name == self._name:
                if not is_under_way:
                    # Never twice: the calls of a probe that were made would be made once more.
                    raise GateError(f"its script broke it off while {self._doing}")
                return None
            if is_under_way:
                raise GateError(f"it is {self._doing} already")
            self._name, self._doing, self._outcome, self._work = name, doing, None, work
            self._changed.notify_all()
            return None

    @property
    def held(self) -> bool:
        """True while the training thread waits at the step of the hold."""
        return self.held_at_ns is not None and self.limit is not None and self.completed >= self.limit

    @property
    def is_paused(self) -> bool:
        """True where there is a hold without a lease; the rank may still be on its way to the step."""
        return self.limit is not None and self._token is None

    def holding(self) -> Holding | None:
        """Return the present hold as a sign of life tells it; None where there is none."""
        if self.limit is None:
            return None
        with self.lock:
            self._lapse()
            if self.limit is None:
                return None
            busy = self._work is not None or self._working
            return Holding(self.limit, self._token or self._kept or "", self.held, self.is_paused, busy)

    @property
    def doing(self) -> str:
        """The work that the held thread does; empty where it only waits."""
        return self._doing if self._working else ""

    @property
    def purpose(self) -> str:
        """The work that the rank is held for, in a few words; empty where it is not held, or is paused."""
        if (held_up := self.held_up) is not None:
            return held_up[0]
        return self._doing if self.held and self._token is not None else ""

    @contextmanager
    def hold_up(self, doing: str) -> Iterator[None]:
        """Take note that the training thread, at the end of a step, does some work of ours, in a few words."""
        self.is_told.clear()
        since_ns = time.time_ns()
        self.held_up = doing, since_ns
        self.news()
        try:
            yield
        finally:
            try:
                # The other ranks wait meanwhile: it is to be known by then what for.
                self.is_told.wait(_TOLD_S)
            finally:
                # A signal handler of the script's may end the wait by an exception.
                self.released_at_ns = time.time_ns()
                self.held_up, self.was_held_up = None, (doing, self.released_at_ns - since_ns)

    def _renew(self) -> None:
        if self._token is not None:
            self._expires = self._clock() + self._lease_s

    def _patience(self) -> float | None:
        return None if self._expires is None else max(0.0, self._expires - self._clock())

    def _lapse(self) -> None:
        if self._token is None or self._expires is None or self._working or self._clock() < self._expires:
            return
        self._open()

    def _note_release(self) -> None:
        """Note it at once: a heartbeat may come before the held thread wakes up."""
        if self.held_at_ns is not None:
            self.released_at_ns = time.time_ns()

    def _open(self) -> None:
        self._note_release()
        self._expires = self._token = self._kept = self._work = None
        # The training thread asks for an end only where there is a limit.
        if self.ended_by is None:
            self.limit = None
        self._changed.notify_all()


def _nobody() -> None:
    """Tell nobody."""
