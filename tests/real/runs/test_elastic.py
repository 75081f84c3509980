"""A launch over as many hosts as come, of which only this one does: the run is as large as its group.

The ranks load no torch; torchrun's own patience for further hosts is cut short by its variable.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.harness import DDPTOP, carriers, until
from support.processes.supervised import events, over, running

from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import RunDir, is_alive

ENDS = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n"

Start = Callable[[], RunDir]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_base: Path) -> Iterator[Start]:
    """Launch it for one or two hosts of two ranks each."""
    monkeypatch.setenv("PET_RDZV_CONF", "last_call_timeout=1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wait.py").write_text(ENDS)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    meeting = ["--nnodes", "1:2", "--nproc-per-node", "2", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    process = subprocess.Popen(
        [*DDPTOP, "launch", "--plain", "--backend", "gloo", *meeting, "wait.py"], stdin=subprocess.DEVNULL
    )

    def started() -> RunDir:
        until(rundir.runs, "the run directory")
        (directory,) = rundir.runs()
        running(directory)
        return directory

    yield started
    for directory in rundir.runs():
        subprocess.run([*DDPTOP, "kill", directory.name, "--grace", "0"], capture_output=True)
        assert not carriers(directory.read().run_id)
    process.wait()


def test_it_is_looked_after_as_what_it_is(start: Start, tmp_path: Path) -> None:
    """The run has the ranks that are there, on the record and for who asks, and ends as it would on one host."""
    directory = start()
    run = directory.read()
    assert (run.world, run.local_world, sorted(directory.members())) == (2, 2, [0, 1])
    assert is_alive(run.observer)
    told = json.loads(subprocess.run([*DDPTOP, "status", "--json"], capture_output=True, check=True).stdout)
    assert (told["world"], [rank["rank"] for rank in told["ranks"]]) == (2, [0, 1])
    (tmp_path / "go").touch()
    over(directory)
    run = directory.read()
    assert (run.state, run.exit_code) == ("finished", 0)
    texts = events(directory)
    assert "the group begins with 2 ranks, of 4 at most" in texts
    assert not [text for text in texts if "takes over" in text or "left out" in text]


def test_a_kill_ends_all_of_it_and_says_so(start: Start) -> None:
    """No rank is missed that never was; torchrun was lost before, and the observer, its parent, has told its signal."""
    directory = start()
    torchrun = directory.read().torchrun
    assert torchrun is not None
    os.kill(torchrun.pid, signal.SIGKILL)
    until(lambda: [text for text in events(directory) if "torchrun is gone (signal 9)" in text], "how it has ended")
    done = subprocess.run([*DDPTOP, "kill", directory.name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 ranks ended, 0 left" in done.stdout
    assert "unknown" not in done.stdout
    assert (over(directory).run.cause or "").startswith("killed by")
