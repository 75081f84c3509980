"""A kill or a signal: its target, the consent that it may begin, and what is under way, whether anybody looks or not.

Knows no screen: a dialog shows it while it is open, and may be closed and opened again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from ddptop.agent.run.identity import Process, identify
from ddptop.agent.wire.vocabulary.refusals import Refused

Aim = int | Process | None
"""What a kill or a signal is meant for: a rank by its number, one process by its identity, or the whole run."""


def process_of(pid: int) -> Process | None:
    """Return the living process with a pid, None where there is none."""
    return identify(pid)


class Consent:
    """Whether a kill or a signal may still begin: until then it can be cancelled. For use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.cancelled = False
        self.begun = False

    def begin(self) -> bool:
        """Begin, unless it was cancelled; return whether it may."""
        with self._lock:
            self.begun = not self.cancelled
            return self.begun

    def cancel(self) -> bool:
        """Cancel, unless it has begun; return whether that was possible."""
        with self._lock:
            self.cancelled = not self.begun
            return self.cancelled


_MOST_LINES: Final = 50

Work = Callable[[Callable[[str], None], Consent], str]
"""Does it; takes what wants to be told of every rung and what to ask before it begins; returns what came of it."""


class Killing:
    """One piece of work in a thread, and the account of it."""

    def __init__(self, work: Work, whom: str, signal: str | None = None) -> None:
        """Prepare.

        Args:
            work: what is done.
            whom: the run, rank or process, as the user is told of it.
            signal: the name of the signal, where only one is sent.
        """
        self.lines: list[str] = []
        """What was told so far, oldest first."""
        self.done: bool | None = None
        """None while it goes on; False where it was refused."""
        self._work = work
        self._whom = whom
        self._signal = signal
        self._consent = Consent()
        # No daemon: where no observer does the work, leaving the dashboard must not leave half a group.
        self._thread = threading.Thread(target=self._run, name="killing")

    @property
    def title(self) -> str:
        """What is being done, and once it is over, what was: a few words."""
        if self.over and not self.done:
            did_not = f"send {self._signal} to {self._whom}" if self._signal else f"kill {self._whom}"
            return f"Cancelled: {did_not}" if self.cancelled else f"Could not {did_not}"
        if self._signal:
            return f"{'Sent' if self.over else 'Sending'} {self._signal} to {self._whom}"
        return f"{'Killed' if self.over else 'Killing'} {self._whom}"

    @property
    def over(self) -> bool:
        """Say whether it has come to its end."""
        return self.done is not None

    @property
    def begun(self) -> bool:
        """Say whether it can be cancelled no more."""
        return self._consent.begun or self.over

    @property
    def cancelled(self) -> bool:
        """Say whether it was cancelled, and nobody has begun since."""
        return self._consent.cancelled

    def cancel(self) -> bool:
        """Cancel what has not begun, at latest where it would; return whether that was possible."""
        return not self.over and self._consent.cancel()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _run(self) -> None:
        done = False
        try:
            text = self._work(self._tell, self._consent)
            done = True
        except Refused as reason:
            text = str(reason)
        except Exception as fault:  # a wall: whoever waits must be told
            text = f"failed: {fault!r}"
        # What came of it was an event too, before others; it is told once, at the end.
        self.lines = [line for line in self.lines if line != text]
        self._tell(text)
        self.done = done

    def _tell(self, line: str) -> None:
        self.lines = [*self.lines, line][-_MOST_LINES:]
