"""The start of an observer."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import threading
from typing import Final

from ddptop.agent.run.files import marks
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.startup.starter import isolated

DATA_ROOM_VARIABLE: Final = "DDPTOP_DATA_ROOM"
"""Environment variable with the soft limit on data, in bytes, before this process got a lower one; -1 for none."""


def start(directory: RunDir) -> None:
    """Start the observer of a run that was just created, detached from the terminal and from the caller."""
    environment = dict(os.environ)
    room = environment.pop(DATA_ROOM_VARIABLE, None)
    if given := environment.get("PYTHONPATH"):
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, given.split(os.pathsep)))
    with open(marks.append(directory.observer_log), "ab") as log:
        process = subprocess.Popen(
            [*isolated("ddptop.agent.observer.observer"), str(directory.path)],
            cwd=directory.path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    if room is not None:
        with contextlib.suppress(OSError, ValueError):
            # The bound on a tab's memory must not bound a training that is restarted from the tab.
            _, most = resource.prlimit(process.pid, resource.RLIMIT_DATA)
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (int(room), most))
    # Without a thread that reads its exit status, it would stay a zombie as long as the caller lives.
    threading.Thread(target=process.wait, name="observer-status", daemon=True).start()
