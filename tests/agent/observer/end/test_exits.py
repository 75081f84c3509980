"""When the processes of ranks ended."""

from __future__ import annotations

import os
import sys
from subprocess import Popen

from support.harness import started

from ddptop.agent.observer.end.exits import Exits
from ddptop.agent.run.rundir import identify


def test_deaths_seen_in_one_look_have_one_time() -> None:
    """Their order is not known, so none is claimed; a death of an earlier look has an earlier time."""
    exits = Exits()
    sleep = (sys.executable, "-c", "import time; time.sleep(100)")
    with started(*sleep) as first, started(*sleep) as second, started(*sleep) as third:
        for rank, process in enumerate((first, second, third)):
            identity = identify(process.pid)
            assert identity is not None
            exits.watch(rank, identity)
        _end(third)
        assert exits.read() == [2]
        _end(second)
        _end(first)
        assert exits.read() == [0, 1]
    assert exits.at_ns[2] < exits.at_ns[0] == exits.at_ns[1]
    exits.close()


def _end(process: Popen[str]) -> None:
    """End a process, and wait for its end without reaping it."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
