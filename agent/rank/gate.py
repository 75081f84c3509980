"""The step boundary: where a rank can be held without leaving a collective half done.

Pausing has two phases, because ranks are up to a step apart.  Each rank first promises not
to pass the step now in work and tells its number; the controller commits the largest.  A
promise that is not committed lapses by itself, a committed one lasts until `resume`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class GateError(Exception):
    """Why a command was refused, in one line."""


class Gate:
    """Holds the training thread at a step boundary. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._limit: int | None = None
        self._expires: float | None = None
        self._token: str | None = None
        self.completed = 0
        """Steps completed."""
        self.held = False
        """True while the training thread stands in `boundary`."""

    def boundary(self) -> bool:
        """Count a step, and stay here while the gate is closed; return whether it was.

        Called by the training thread after every optimizer step. A signal handler of the
        script runs as ever while it waits.
        """
        with self._changed:
            self.completed += 1
            self._lapse()
            if self._limit is None:
                return False
            try:
                while self._limit is not None and self.completed >= self._limit:
                    self.held = True
                    self._changed.wait(self._patience())
                    self._lapse()
            finally:
                waited, self.held = self.held, False
            return waited

    def promise(self, token: str, lease_s: float) -> int:
        """Promise not to pass the step now in work; return its number.

        Raises:
            GateError: the rank is paused already, or somebody else is pausing it.
        """
        with self._changed:
            self._lapse()
            if self._limit is not None and self._expires is None:
                raise GateError(f"already paused at step {self._limit}")
            if self._limit is not None and token != self._token:
                raise GateError("another pause is under way")
            self._limit = self._limit or self.completed + 1
            self._token, self._expires = token, self._clock() + lease_s
            return self._limit

    def commit(self, token: str, step: int) -> None:
        """Let the rank run up to `step` and stay there.

        Raises:
            GateError: the promise has lapsed, or `step` is behind it.
        """
        with self._changed:
            self._lapse()
            if self._limit is None or token != self._token:
                raise GateError("the promise has lapsed")
            if step < self._limit:
                raise GateError(f"step {step} is before the promised step {self._limit}")
            self._limit, self._expires = step, None
            self._changed.notify_all()

    def resume(self) -> None:
        """Open the gate."""
        with self._changed:
            self._open()

    @property
    def limit(self) -> int | None:
        """The step at which the rank is or will be held, None when the gate is open."""
        return self._limit

    def _patience(self) -> float | None:
        return None if self._expires is None else max(0.0, self._expires - self._clock())

    def _lapse(self) -> None:
        if self._expires is not None and self._clock() >= self._expires:
            self._open()

    def _open(self) -> None:
        self._limit = self._expires = self._token = None
        self._changed.notify_all()
