"""When the processes of ranks ended."""

from __future__ import annotations

import os
import select
import sys
from subprocess import PIPE, Popen
from typing import Any

import pytest
from support.harness import WAITING, started, until

from ddptop.agent.observer.end.exits import Exits, exit_status
from ddptop.agent.run.rundir import identify


def test_deaths_seen_in_one_look_have_one_time() -> None:
    """Their order is not known, so none is claimed; a death of an earlier look has an earlier time."""
    exits = Exits()
    with started(*WAITING) as first, started(*WAITING) as second, started(*WAITING) as third:
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
    with started(*WAITING) as leader, started(*WAITING) as rank:
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
    with started(*WAITING) as process:
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


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system has no pidfds")
@pytest.mark.parametrize(("end", "status"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 11)", -11), ("0", 0)])
def test_the_exit_status_is_known_before_the_parent_has_read_it(end: str, status: int) -> None:
    """As the parent then gets it; a process that goes on has none."""
    with started(sys.executable, "-c", f"import os, sys; sys.stdin.read(); {end}", stdin=PIPE) as process:
        identity = identify(process.pid)
        assert identity is not None
        assert process.stdin is not None
        exits = Exits()
        exits.watch(3, identity)
        process.stdin.close()
        until(exits.read, "the end is seen")
        assert exits.status == {3: status}
        assert process.wait() == status
        exits.close()


def test_a_status_that_the_system_does_not_tell_is_not_known() -> None:
    """A process that lives has none, neither has one whose number nobody has."""
    handle = os.open("/dev/null", os.O_RDONLY)
    try:
        assert exit_status(os.getpid(), handle) is None
        assert exit_status(1 << 22, handle) is None
    finally:
        os.close(handle)
