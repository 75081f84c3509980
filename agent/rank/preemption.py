"""What a TERM from outside leads to where the run was launched with `--on-term checkpoint`.

A scheduler that needs the machine tells torchrun, and torchrun its ranks, at moments of their
own.  The first rank that can becomes the controller: it has all of them save at one step and
end there, within the 30 s after which torchrun kills.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Final

from ddptop.agent import wire
from ddptop.agent.caller import LiveGroup
from ddptop.agent.control import Controller, Refused
from ddptop.agent.group import journal
from ddptop.agent.rundir import RunDir, RunDirError

if TYPE_CHECKING:
    from ddptop.agent.rank.session import Session

VARIABLE: Final = "DDPTOP_ON_TERM"
WHO: Final = "SIGTERM"
_PATIENCE_S: Final = 25.0
_PAUSE_S: Final = 0.3
"""Between two attempts; and, for each rank number, before the first: ranks need not quarrel over who controls."""


def install(session: Session, directory: RunDir) -> None:
    """Take SIGTERM, if the run was launched so. A handler that the script sets later goes before ours."""
    if os.environ.get(VARIABLE) == "checkpoint":
        preemption = _Preemption(session, directory)
        signal.signal(signal.SIGTERM, preemption.begin)
        os.register_at_fork(after_in_child=preemption.forget)


class _Preemption:
    def __init__(self, session: Session, directory: RunDir) -> None:
        self._session = session
        self._directory = directory
        self._begun = False
        self._failed = False

    def begin(self, number: int, _frame: FrameType | None) -> None:
        """Set about it in a thread: the main thread has to come to the end of its step."""
        if self._failed:
            self.forget()
            os.kill(os.getpid(), number)
        elif not self._begun:
            self._begun = True
            threading.Thread(target=self._stop, name="ddptop-preemption", daemon=True).start()

    @staticmethod
    def forget() -> None:
        """Die of a TERM as ever; data workers are ended by one."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _stop(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        time.sleep(min(self._session.rank, 10) * _PAUSE_S)
        told = ""
        while time.monotonic() < deadline and self._session.gate.ended_by is None:
            try:
                with LiveGroup(self._directory) as group:
                    Controller(group, WHO).stop(progress=lambda saved: self._note(f"stops: {saved}", "warning"))
                return
            except (Refused, RunDirError) as problem:
                if "under way" not in str(problem) and str(problem) != told:
                    told = str(problem)
                    self._note(f"refused: {problem}", "error")
                time.sleep(_PAUSE_S)
        if self._session.gate.ended_by is None:
            self._failed = True
            os.kill(os.getpid(), signal.SIGTERM)

    def _note(self, outcome: str, level: str) -> None:
        text = f"stop by {WHO}: {outcome}"
        journal.note(self._directory, wire.Event(time.time_ns(), text, self._session.rank, level, "stop", WHO))
