"""Distinguishes a rank from the processes that it starts, which inherit its environment.

A script may start other processes, for example for an evaluation. Their environment has all
variables of a rank, and they must not take over the sockets, record and log of the rank that started them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from ddptop.agent.run.identity import Process, identify, may_live
from ddptop.agent.run.rundir import RANK_VARIABLE


def mark_environment() -> None:
    """Write the identity of this rank into the environment, for the processes that it starts."""
    process = identify(os.getpid())
    if process is not None:
        os.environ[RANK_VARIABLE] = f"{process.pid} {process.started!r} {process.namespace}"


def rank_above(environment: Mapping[str, str]) -> Process | None:
    """Return the process of the rank that an environment names, None where it has ended or is this process."""
    process = _read(environment.get(RANK_VARIABLE, ""))
    own = identify(os.getpid())
    if process is None or (own is not None and (own.pid, own.namespace) == (process.pid, process.namespace)):
        # A script may replace itself by another program: the process is the same, and is the rank.
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
