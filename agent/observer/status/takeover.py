"""Who looks after a run whose supervisor is gone: whoever meets it next starts another one.

Never two at once: the claim in the run directory decides, not what is seen here.  A run that
is over and has left nobody behind needs none; its end is only written down.
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
"""Between two attempts, by whomever: the last one may still be starting."""
_START_S: Final = 5.0
"""How long the first supervisor of a run may take to say who it is."""


def meet(
    directory: RunDir, members: dict[int, Member] | None = None, heard: Collection[int] = frozenset()
) -> survey.Survey:
    """Return what is true of a run now, as `survey.look` does, and see to it that somebody looks after it.

    Raises:
        RunDirError: the run has no readable record.
    """
    now = survey.look(directory, members, heard)
    run = now.run
    if run.state in ENDED_STATES or now.supervised:
        return now
    if not run.launched or (now.ended and not processes.find(run, now.members)):
        return survey.settle(directory, members, heard)
    # Both ways, here as below: a date in the future is that of a clock that was set back since.
    starting = run.supervisor is None and abs(time.time_ns() - run.created_at_ns) < _START_S * 1e9
    if not starting and _is_due(directory):
        with contextlib.suppress(OSError):
            supervisor.start(directory)
    return now


def tidy(spared: RunDir | None = None) -> dict[str, int]:
    """Write down the end of every run that has ended unseen, and remove the oldest ended ones but `spared`.

    Return the names of the removed runs, with the bytes that each took.
    """
    for run in rundir.runs():
        with contextlib.suppress(RunDirError):
            meet(run)
    return rundir.prune(spared, retention.size_of)


def _is_due(directory: RunDir) -> bool:
    """Say whether the last attempt is long enough ago, and note this one; the log's date serves as the note."""
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
