"""A rank lets the observer of its run look into it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.harness import WAITING, started, until

from ddptop.agent.observer.inspection.dumps import executable
from ddptop.agent.outside.rights import ptrace_scope
from ddptop.agent.rank.process import visibility
from ddptop.agent.rank.process.visibility import Visibility
from ddptop.agent.run.rundir import RunDir, identify

ASLEEP = """
import os, signal, sys
from pathlib import Path
from ddptop.agent.rank.process.visibility import Visibility
from ddptop.agent.run.rundir import RunDir
Visibility(RunDir(Path(sys.argv[1]))).tick()
up = Path(sys.argv[2])
up.with_suffix(".part").write_text(str(os.getpid()))
up.with_suffix(".part").rename(up)
signal.pause()
"""


def test_each_observer_may_look(new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch) -> None:
    """The observer that the record names is allowed once, its successor again; one that is gone never is."""
    directory, allowed = new_run(), list[int]()
    monkeypatch.setattr(visibility, "_allow", allowed.append)
    visible = Visibility(directory)
    visible.tick()
    assert allowed == []
    with started(*WAITING) as first, started(*WAITING) as second:
        for process in (first, second):
            directory.update(observer=identify(process.pid))
            for _ in range(3):
                visible.tick()
        assert allowed == [first.pid, second.pid]
        gone = identify(first.pid)
        first.kill()
        first.wait()
        directory.update(observer=gone)
        visible.tick()
    assert allowed == [first.pid, second.pid]


@pytest.mark.skipif(ptrace_scope() != 1 or os.geteuid() == 0, reason="Yama asks nobody here who may look")
def test_the_observer_needs_no_root(new_run: Callable[..., RunDir], tmp_path: Path) -> None:
    """Where `ptrace_scope` is 1, py-spy that this process starts can look at a rank which it did not start itself."""
    directory, program = new_run(), executable()
    assert program is not None
    directory.update(observer=identify(os.getpid()))
    (tmp_path / "asleep.py").write_text(ASLEEP)
    up = tmp_path / "up"
    # An orphan: this process is not above it, as its observer would not be.
    words = shlex.join([sys.executable, str(tmp_path / "asleep.py"), str(directory.path), str(up)])
    subprocess.run(["sh", "-c", f"setsid {words} >/dev/null 2>&1 &"], check=True)
    until(up.exists, "the rank")
    pid = int(up.read_text())
    try:
        subprocess.run([program, "dump", "--pid", str(pid)], check=True, capture_output=True)
    finally:
        os.kill(pid, signal.SIGKILL)
