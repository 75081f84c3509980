"""The programs of ddptop as processes: their version, their start, and a bound on their memory."""

from __future__ import annotations

from ddptop.agent.startup.starter import isolated as isolated
from ddptop.agent.startup.starter import quicken as quicken
from ddptop.agent.startup.version import VERSION as VERSION


def limit_memory(room: int) -> None:
    """Let this process get no more than `room` bytes on top of what it has; the observers that it starts may get more.

    What it begins with differs from machine to machine: numpy starts a thread for each core.
    """
    import os
    import resource

    import psutil

    from ddptop.agent.launcher.observers import DATA_ROOM_VARIABLE

    now = getattr(psutil.Process().memory_info(), "data", None)
    if now is None:
        # Only Linux counts, and limits, what is written to.
        return
    before, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = now + room
    if most == resource.RLIM_INFINITY or limit < most:
        os.environ[DATA_ROOM_VARIABLE] = str(before)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
