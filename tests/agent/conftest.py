"""Runs for the tests, and the certainty that none of their processes outlives the test."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.harness import carriers, until
from support.processes import supervised

from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run, RunDir

SPAWNER = Path(__file__).parent / "observer" / "spawner.py"
"""Stands in for torchrun where a test needs ranks and not torchrun: it starts in 50 ms, torchrun in 3 s."""


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime directory of the test's own, short enough for socket paths."""
    path = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))
    monkeypatch.setenv("DDPTOP_RUNTIME_DIR", str(path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield path
    # A successor may just begin, to find that there is nothing left to look after.
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def new_run() -> Iterator[Callable[..., RunDir]]:
    """Make the directory of a run; at the end, all that carries its marker and its observer are ended by pid."""
    made: list[tuple[RunDir, str]] = []

    def make(**fields: object) -> RunDir:
        given = {
            "run": f"test-{secrets.token_hex(3)}",
            "run_id": secrets.token_hex(8),
            "program": "script.py",
            "arguments": (),
            "world": 2,
            "backend": "gloo",
            "device": "cpu",
            "created_at_ns": time.time_ns(),
            "launched": True,
            "grace_s": 1.0,
        }
        run = Run(**given | fields)  # type: ignore[arg-type]
        directory = rundir.create(run)
        made.append((directory, run.run_id))
        return directory

    yield make
    for directory, run_id in made:
        until(lambda: _is_ended(directory, run_id), "the processes of the test are gone")  # noqa: B023 # used at once


def _is_ended(directory: RunDir, run_id: str) -> bool:
    """Say whether nobody of the run is left, and kill whoever is: meanwhile one may have started another."""
    watching = directory.read().observer
    left = carriers(run_id) + ([watching.pid] if watching and rundir.is_alive(watching) else [])
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return not left


@pytest.fixture
def launch(new_run: Callable[..., RunDir], tmp_path: Path) -> Callable[..., RunDir]:
    """Start a script as a supervised run, by default with the stand-in for torchrun."""

    def go(text: str, world: int = 2, command: tuple[str, ...] | None = None, **fields: object) -> RunDir:
        script = tmp_path / "script.py"
        script.write_text(text)
        stand_in = (sys.executable, str(SPAWNER), str(world), str(script))
        directory = new_run(world=world, cwd=str(tmp_path), command=command or stand_in, **fields)
        supervised.observe(directory)
        return directory

    return go


@pytest.fixture
def python() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a Python process that runs a line of code and is ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def go(code: str, marker: str | None = None) -> subprocess.Popen[str]:
        environment = os.environ | ({"DDPTOP_RUN_ID": marker} if marker else {})
        process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield go
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
