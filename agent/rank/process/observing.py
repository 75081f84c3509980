"""The agent of local rank 0 sees to it that the run has an observer, where something else launched the job.

The observer is another process, which has nothing of the rank (`run.detached`).  For some 30 ms the start has a child
of this process: the script begins afterwards, because one that waits for any child must get its own.  A thread
does it, so that a start which hangs holds nobody up; the rank goes on alike with and without an observer.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Final

from ddptop.agent.launcher import detached
from ddptop.agent.rank.faults import Faults
from ddptop.agent.run.identity import is_alive, may_live
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.wire.frames import ENDED

_PATIENCE_S: Final = 2.0
"""Seconds that the script waits at most; on a machine that is not overloaded, one or two hundredths pass."""


def ensure(directory: RunDir, generation: int, faults: Faults) -> None:
    """Start the observer of this run, unless it has one; a failure is counted as a fault.

    Args:
        directory: the directory of the run, in which this rank has its record.
        generation: that of this rank.
        faults: receives a failure.
    """
    thread = threading.Thread(target=_start, args=(directory, generation, faults), name="ddptop-observer", daemon=True)
    with faults.noted("starting the run's observer"):  # no more threads
        thread.start()
        thread.join(_PATIENCE_S)


def renew(directory: RunDir, **changes: object) -> None:
    """Change the record of this run, which a process was alone in, and have an observer that knows no other record."""
    before = directory.read().observer
    if before is not None and is_alive(before):
        # It leaves the run as it is.
        os.kill(before.pid, signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE_S
        while is_alive(before) and time.monotonic() < deadline:
            time.sleep(0.01)
    directory.update(observer=None, **changes)
    detached.start(directory).wait()


def replace_lost(directory: RunDir, faults: Faults) -> None:
    """Start another observer where the run's was killed; for a thread of the agent, while the script runs.

    On one host the next onlooker does that; an onlooker on another host cannot start anything here.  An observer that
    had to leave has taken its sockets with it, and is not replaced.  For some 30 ms the start has a child of this
    process, as above.
    """
    with faults.noted("replacing the run's observer"):  # the training goes on, whatever the error is
        if not os.path.exists(directory.address("observer", "pub").removeprefix("ipc://")):
            return
        run = directory.read()
        if run.observer is None or run.state in ENDED or may_live(run.observer):
            return
        if detached.is_due(directory):
            detached.start(directory).wait()


def _start(directory: RunDir, generation: int, faults: Faults) -> None:
    with faults.noted("starting the run's observer"):  # the training goes on, whatever the error is
        run = directory.read()
        # The first generation of a launched run was started by its observer.
        if run.state in ENDED or may_live(run.observer) or (run.launched and not generation):
            return
        if detached.is_due(directory):
            detached.start(directory).wait()
