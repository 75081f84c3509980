"""Takeover of a run whose observer is gone: the next process that looks at the run starts another one.

Two observers do not run at once: the claim in the run directory excludes the second.  A run that
has ended needs none, unless ddptop launched it and has to end processes that are left; only its end is recorded.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection
from typing import Final

from ddptop.agent.end import processes, survey
from ddptop.agent.run import detached
from ddptop.agent.run.identity import ELSEWHERE
from ddptop.agent.run.rundir import Member, Run, RunDir
from ddptop.agent.wire.frames import ENDED

_START_S: Final = 5.0
"""Seconds that the first observer of a run may take to record itself."""


def meet(
    directory: RunDir, members: dict[int, Member] | None = None, heard: Collection[int] = frozenset()
) -> survey.Survey:
    """Return the present state of a run, as `survey.look` does, and start an observer where it needs one.

    Raises:
        RunDirError: the run has no readable record.
    """
    now = survey.look(directory, members, heard)
    run = now.run
    if run.state in ENDED or now.supervised:
        return now
    if now.ended and not (run.launched and processes.find(run, now.local)):
        return survey.settle(directory, members, heard)
    if now.cause == ELSEWHERE:
        # An observer that is started here would see none of its processes.
        return now
    # The absolute difference, here as below: a date in the future means that the clock was set back since.
    starting = run.observer is None and abs(time.time_ns() - run.created_at_ns) < _START_S * 1e9
    if not starting and detached.is_due(directory):
        with contextlib.suppress(OSError):
            _start(directory, run)
    return now


def _start(directory: RunDir, run: Run) -> None:
    if run.launched:
        # Here, because few looks start one, and its modules are a third of what a look has to import.
        from ddptop.agent.launcher import observers

        observers.start(directory)
        return
    starting = detached.start(directory)
    threading.Thread(target=starting.wait, name="observer-status", daemon=True).start()
