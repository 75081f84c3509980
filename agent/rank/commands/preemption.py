"""The reaction to a SIGTERM from outside, where the run was launched with `--on-term checkpoint`.

A scheduler that needs the machine sends SIGTERM to torchrun, which sends it to the ranks, one after the
other.  The first rank that can becomes the controller: it has all ranks save at one step and
end there, before torchrun kills them after 30 s.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from ddptop.agent import wire
from ddptop.agent.control import journal
from ddptop.agent.control.caller import LiveGroup
from ddptop.agent.control.controller import Busy, Controller, Refused
from ddptop.agent.run.rundir import RunDir, RunDirError

if TYPE_CHECKING:
    from ddptop.agent.rank.session import Session

VARIABLE: Final = "DDPTOP_ON_TERM"
WHO: Final = "SIGTERM"
_PATIENCE_S: Final = 25.0
_PAUSE_S: Final = 0.3
"""Seconds between two attempts, and before the first one times the rank, so that ranks do not compete for control."""


def install(session: Session, directory: RunDir) -> None:
    """Handle SIGTERM, if the run was launched so. A handler that the script sets later replaces this one."""
    if os.environ.get(VARIABLE) == "checkpoint":
        preemption = _Preemption(session, directory)
        try:
            preemption.before = signal.signal(signal.SIGTERM, preemption.begin)
        except ValueError as error:
            session.faults.note("taking SIGTERM", error)
            return
        os.register_at_fork(after_in_child=preemption.forget)


class _Preemption:
    def __init__(self, session: Session, directory: RunDir) -> None:
        self._session = session
        self._directory = directory
        self._begun = False
        self._failed = False
        self.before: Any = signal.SIG_DFL
        """The earlier handler of SIGTERM."""

    def begin(self, number: int, frame: FrameType | None) -> None:
        """Start a thread that stops the run, since the main thread has to reach the end of its step."""
        if self._failed or os.getpid() != self._session.owner:
            self._as_before(number, frame)
        elif not self._begun:
            self._begun = True
            try:
                threading.Thread(target=self._try_to_stop, name="ddptop-preemption", daemon=True).start()
            except Exception as error:
                # Raised here, the error would appear at the present line of the script.
                self._session.faults.note("a thread for the stop", error)
                self._give_up()

    def _as_before(self, number: int, frame: FrameType | None) -> None:
        """Call the earlier handler of SIGTERM; a handler that the script has set since may have called this one."""
        if callable(self.before):
            self.before(number, frame)
        elif self.before != signal.SIG_IGN:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def forget(self) -> None:
        """In a forked child: restore the earlier handler, because data workers are ended by SIGTERM."""
        if signal.getsignal(signal.SIGTERM) == self.begin:
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self.before is None else self.before)

    def _give_up(self) -> None:
        """Send SIGTERM to this process once more, with the effect that it would have without ddptop."""
        self._failed = True
        os.kill(os.getpid(), signal.SIGTERM)

    def _try_to_stop(self) -> None:
        try:
            self._stop()
        except Exception as error:
            self._session.faults.note(f"stop by {WHO}", error)
            if self._session.gate.ended_by is None:
                self._give_up()

    def _stop(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        time.sleep(min(self._session.rank, 10) * _PAUSE_S)
        noted = ""
        while time.monotonic() < deadline and self._session.gate.ended_by is None:
            try:
                # The scheduler ends the observer as well, and maybe first; only for ranks of other hosts it is asked.
                with LiveGroup(self._directory, relayed=False) as group:
                    Controller(group, WHO).stop(progress=lambda saved: self._note(saved, "warning"))
                return
            except Exception as problem:
                if not isinstance(problem, Refused | RunDirError):
                    # No descriptors, no room: the next attempt may find some.
                    self._session.faults.note(f"stop by {WHO}", problem)
                if not isinstance(problem, Busy) and str(problem) != noted:
                    noted = str(problem)
                    self._note(noted, "error", refused=True)
                # Two ranks that try at the same moments would refuse each other for ever.
                time.sleep(_PAUSE_S * random.uniform(0.5, 1.5))
        if self._session.gate.ended_by is None:
            self._give_up()

    def _note(self, outcome: str, level: str, *, refused: bool = False) -> None:
        try:
            text = journal.sentence("stop", outcome, WHO, refused=refused)
            journal.note(self._directory, wire.Event(time.time_ns(), text, self._session.rank, level, "stop", WHO))
        except Exception as error:
            self._session.faults.note("telling of the stop", error)
