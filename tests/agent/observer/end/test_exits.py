"""When the processes of ranks ended."""

from __future__ import annotations

import os
import select
import sys
from subprocess import Popen
from typing import Any

import pytest
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


def test_whoever_waits_for_an_end_is_woken_by_it() -> None:
    """The end of a rank, or of what starts the ranks, makes a handle readable, and only until it has been noted."""
    exits = Exits()
    sleep = (sys.executable, "-c", "import time; time.sleep(100)")
    with started(*sleep) as leader, started(*sleep) as rank:
        exits.watch_leader(identify(leader.pid))
        identity = identify(rank.pid)
        assert identity is not None
        exits.watch(0, identity)
        assert exits.shows_all
        assert not _is_readable(exits, 0)
        _end(rank)
        assert _is_readable(exits, 5000)
        assert exits.read() == [0]
        assert not _is_readable(exits, 0)
        _end(leader)
        assert _is_readable(exits, 5000)
        assert exits.read() == []
        assert not _is_readable(exits, 0)
        assert not exits.shows_all, "nothing tells of a leader that is gone"
    exits.close()


@pytest.mark.parametrize("what", [(os, "pidfd_open"), (select, "epoll")])
def test_without_descriptors_somebody_has_to_look(what: tuple[Any, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that no handle shows is known as such, and its end is noticed by the process table."""

    def refuse(*_: int) -> int:
        raise OSError

    monkeypatch.setattr(*what, refuse, raising=False)
    exits = Exits()
    with started(sys.executable, "-c", "import time; time.sleep(100)") as process:
        identity = identify(process.pid)
        assert identity is not None
        exits.watch(0, identity)
        assert not exits.shows_all
        assert exits.read() == []
        _end(process)
        assert exits.read() == [0]
    assert exits.shows_all
    exits.close()


def _is_readable(exits: Exits, timeout_ms: int) -> bool:
    poll = select.poll()
    for handle in exits.handles:
        poll.register(handle, select.POLLIN)
    return bool(poll.poll(timeout_ms))


def _end(process: Popen[str]) -> None:
    """End a process, and wait for its end without reaping it."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
