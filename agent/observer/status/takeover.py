"""Takeover of a run whose supervisor is gone: the next process that looks at the run starts another one.

Two supervisors do not run at once: the claim in the run directory excludes the second.  A run that
has ended and has no process left needs none; only its end is recorded.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from typing import Final

from ddptop.agent.observer import supervisor
from ddptop.agent.observer.end import processes
from ddptop.agent.observer.record import retention
from ddptop.agent.observer.status import survey
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import ENDED_STATES, Member, RunDir, RunDirError

_AGAIN_S: Final = 3.0
"""Seconds between two attempts of any processes: the last supervisor may still be starting."""
_START_S: Final = 5.0
"""Seconds that the first supervisor of a run may take to record itself."""


def meet(
    directory: RunDir, members: dict[int, Member] | None = None, heard: Collection[int] = frozenset()
) -> survey.Survey:
    """Return the present state of a run, as `survey.look` does, and start a supervisor where it needs one.

    Raises:
        RunDirError: the run has no readable record.
    """
    now = survey.look(directory, members, heard)
    run = now.run
    if run.state in ENDED_STATES or now.supervised:
        return now
    if not run.launched or (now.ended and not processes.find(run, now.members)):
        return survey.settle(directory, members, heard)
    # The absolute difference, here as below: a date in the future means that the clock was set back since.
    starting = run.supervisor is None and abs(time.time_ns() - run.created_at_ns) < _START_S * 1e9
    if not starting and _is_due(directory):
        with contextlib.suppress(OSError):
            supervisor.start(directory)
    return now


def tidy(spared: RunDir | None = None) -> dict[str, int]:
    """Record the end of every run that ended without a supervisor, and remove the oldest ended runs but `spared`.

    Return the names of the removed runs, each with its bytes.
    """
    for run in rundir.runs():
        with contextlib.suppress(RunDirError):
            meet(run)
    return rundir.prune(spared, retention.size_of)


def _is_due(directory: RunDir) -> bool:
    """Say whether the last attempt is long enough ago, and set the date of the log, which records attempts."""
    log = directory.supervisor_log
    try:
        if abs(time.time() - log.stat().st_mtime) < _AGAIN_S:
            return False
        os.utime(log)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
