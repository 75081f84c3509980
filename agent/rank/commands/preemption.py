"""The reaction to a SIGTERM from outside, where the run was launched with `--on-term checkpoint`.

A scheduler that needs the machine sends SIGTERM to torchrun, which sends it to the ranks, one after the
other.  They ask the observer to have all ranks save at one step and end there, before torchrun kills them after 30 s;
the observer of such a run stays where it gets the signal, too.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from ddptop.agent import wire
from ddptop.agent.control import caller
from ddptop.agent.rank.process.observing import replace_lost
from ddptop.agent.run.rundir import RunDir, RunDirError
from ddptop.agent.wire.vocabulary.refusals import Refused

if TYPE_CHECKING:
    from ddptop.agent.rank.session import Session

VARIABLE: Final = "DDPTOP_ON_TERM"
WHO: Final = "SIGTERM"
_PATIENCE_S: Final = 25.0
_APART_S: Final = 0.3
"""Seconds before the first request, times the rank: one of them is enough."""
_AGAIN_S: Final = 2.0
"""Seconds between two requests of a rank."""


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
        gate = self._session.gate
        time.sleep(min(self._session.rank, 10) * _APART_S)
        while time.monotonic() < deadline and gate.ended_by is None:
            try:
                stop = wire.Act(1, "stop", WHO)
                caller.ask(self._directory, stop, is_cancelled=lambda: time.monotonic() > deadline)
                return
            except Exception as problem:
                if not isinstance(problem, Refused | RunDirError):
                    # No descriptors, no room: the next attempt may find some.
                    self._session.faults.note(f"stop by {WHO}", problem)
                replace_lost(self._directory, self._session.faults)
                time.sleep(_AGAIN_S)
        if gate.ended_by is None:
            self._give_up()
