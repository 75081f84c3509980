"""The agent joins ranks that train already, by Python 3.14's own `sys.remote_exec`, and leaves them.

For a Python that has torch: this one, that of DDPTOP_TEST_PYTHON314, or `python3.14`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Final

import pytest
from support.harness import until
from support.processes.unprepared import Unprepared

from ddptop.agent.client import runs
from ddptop.agent.client.acting.control import RunControl
from ddptop.agent.client.look import frames
from ddptop.agent.launcher import detached
from ddptop.agent.wire.vocabulary.refusals import Refused

_TIMES: Final = 50
_LOOK: Final = "import sys, torch; sys.exit(not hasattr(sys, 'remote_exec'))"


@cache
def _python() -> str:
    """Return a Python that can be joined, empty where there is none."""
    named = (sys.executable, os.environ.get("DDPTOP_TEST_PYTHON314"), shutil.which("python3.14"))
    for each in filter(None, named):
        if subprocess.run([each, "-c", _LOOK], capture_output=True, check=False).returncode == 0:
            return each
    return ""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., tuple[Unprepared, RunControl]]]:
    """Start two ranks, and an observer for them."""
    if not _python():
        pytest.skip("no Python 3.14 with torch here: DDPTOP_TEST_PYTHON314 names one")
    started: list[Unprepared] = []

    def begin(steps: int = 0) -> tuple[Unprepared, RunControl]:
        job = Unprepared(tmp_path, steps, python=_python())
        started.append(job)
        detached.start(job.directory).wait()
        if not steps:
            job.await_training()
        return job, RunControl.of(runs.Run(job.directory), "test")

    yield begin
    for each in started:
        each.close()


def test_joined_and_left_many_times_it_has_trained_the_same(
    start: Callable[..., tuple[Unprepared, RunControl]],
) -> None:
    """No step is lost or different, nothing is left, and all that an agent can do it does in between."""
    job, control = start()
    control.join()
    (frame,) = frames([runs.Run(job.directory)], "test")
    assert frame.known_by == "joined"
    assert "held at step" in control.pause()
    with pytest.raises(Refused, match="resume the run first"):
        control.leave()
    assert "after 3 steps" in control.step(3)
    assert "resumed" in control.resume()
    assert not any(each.differing_ranks for each in control.checksums().modules)
    for kind in ("profile", "memory", "probe"):
        assert Path(control.diagnose(kind, steps=2, ranks=(0, 1))).is_dir()
    control.leave()
    assert job.look(1) == 2 * [[[], [], [], []]]
    for _ in range(_TIMES):
        control.join()
        control.leave()
    assert job.look(2) == 2 * [[[], [], [], []]]
    ended = job.end()
    plain, _ = start(ended[0][0])
    assert plain.end() == ended


def test_a_rank_that_is_stopped_is_not_joined_nor_continued(
    start: Callable[..., tuple[Unprepared, RunControl]],
) -> None:
    """Whoever has stopped it lets it go on; then it joins, and `kill` ends the run as any other."""
    job, control = start()
    os.kill(job.processes[1].pid, signal.SIGSTOP)
    with pytest.raises(Refused, match="rank 1 is stopped"):
        control.join()
    assert "State:\tT" in Path(f"/proc/{job.processes[1].pid}/status").read_text()
    os.kill(job.processes[1].pid, signal.SIGCONT)
    control.join()
    control.kill(1.0, None, lambda line: None)
    assert all(until(partial(each.poll), "the ranks to end") is not None for each in job.processes)
