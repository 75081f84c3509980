"""A job on two hosts whose elastic launcher goes on with one of them: another observer takes the same run over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from support.harness import carriers, until
from support.processes.supervised import events

from ddptop.agent.observer.jobs import resizing
from ddptop.agent.run import hosts, rundir
from ddptop.agent.run.files.private import Claim
from ddptop.agent.run.hosts import FarRanks
from ddptop.agent.run.rundir import Member, Run, RunDir, is_alive

LAUNCHER: Final = """
import os, subprocess, sys, time

def start(world, restarts):
    told = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0",
            "MASTER_ADDR": "node1", "MASTER_PORT": "29400", "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": restarts}
    return subprocess.Popen([sys.executable, "-m", "ddptop.agent", "script.py"], env=os.environ | told)

first = start("2", "0")
while not os.path.exists("again"):
    time.sleep(0.05)
first.kill()
first.wait()
sys.exit(start("1", "1").wait())
"""


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[RunDir]:
    """Return the run of such a job, which has two ranks at first."""
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    (tmp_path / "script.py").write_text("import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n")
    process = subprocess.Popen([sys.executable, "launcher.py"], cwd=tmp_path, stdin=subprocess.DEVNULL)
    try:
        until(rundir.runs, "the run directory")
        yield rundir.runs()[0]
    finally:
        for directory in rundir.runs():
            run = directory.read()
            for pid in [
                *carriers(run.run_id),
                *([run.observer.pid] if run.observer and is_alive(run.observer) else []),
            ]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()


def test_the_run_goes_on_with_the_present_number_of_ranks(launched: RunDir, tmp_path: Path) -> None:
    """It keeps its directory and its record, forgets the other host, and ends well although that one is lost."""
    until(lambda: launched.read().state == "running" and is_alive(launched.read().observer), "the first start")
    before = launched.read()
    assert (before.world, before.local_world) == (2, 1)
    (tmp_path / "again").touch()

    def taken_over() -> bool:
        run = launched.read()
        return run.observer != before.observer and is_alive(run.observer) and run.state == "running"

    until(taken_over, "another observer")
    assert [directory.path for directory in rundir.runs()] == [launched.path]
    assert (launched.read().world, launched.read().local_world) == (1, 1)
    assert [member.generation for member in launched.members().values()] == [1]
    assert hosts.far_members(launched.path) == {}
    assert not is_alive(before.observer)
    (tmp_path / "go").touch()
    until(lambda: launched.read().state == "finished", "the end")
    assert "the group was started again: its world is 1, and was 2" in events(launched)


def test_what_the_next_observer_writes_of_other_hosts_is_kept(own_base: Path) -> None:
    """The hosts are forgotten before another process can claim the run, which may be at any time after that."""
    me = rundir.identify(os.getpid())
    assert me is not None
    directory = rundir.create(Run("next", "next", "toy.py", (), 2, "gloo", "cpu", 0, False, state="finished"))
    before, after = (Member(1, 0, 2, me, host, 0, "", "", None) for host in ("node2", "node3"))
    hosts.write_far(directory.path, FarRanks((before,)))

    class Awaited(Claim):
        def release(self) -> None:
            assert hosts.far_members(directory.path) == {}
            super().release()
            hosts.write_far(directory.path, FarRanks((after,)))

    claim = Awaited.acquire(directory.path)
    assert claim is not None
    resizing.hand_over(directory, claim, in_place=False)
    assert hosts.far_members(directory.path) == {1: after}
    until(lambda: "run next is over" in directory.observer_log.read_text(), "the end of the observer")
