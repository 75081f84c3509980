"""Whether a process is a rank itself, or was started by one and has that rank's environment.

A script may start processes of its own, for an evaluation say, and these find in their environment all that
makes a process a rank of the run: the rank that they come from must not lose its sockets, record and log to them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from ddptop.agent.run.identity import Process, identify, may_live
from ddptop.agent.run.rundir import RANK_VARIABLE


def leave_word() -> None:
    """Tell all that this process starts that it is a rank."""
    process = identify(os.getpid())
    if process is not None:
        os.environ[RANK_VARIABLE] = f"{process.pid} {process.started!r} {process.namespace}"


def rank_above(environment: Mapping[str, str]) -> Process | None:
    """Return the rank whose environment this is, None where it has ended, is this process, or never was one."""
    process = _read(environment.get(RANK_VARIABLE, ""))
    own = identify(os.getpid())
    if process is None or (own is not None and (own.pid, own.namespace) == (process.pid, process.namespace)):
        # A script may replace itself by another program: the same process, with its own word in the environment.
        return None
    return process if may_live(process) else None


def _read(text: str) -> Process | None:
    pid, _, rest = text.partition(" ")
    started, _, namespace = rest.partition(" ")
    try:
        found = Process(int(pid), float(started), namespace=namespace[:40])
    except ValueError:
        return None
    return found if 0 < found.pid < 1 << 31 and math.isfinite(found.started) else None
