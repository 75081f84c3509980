"""What tests of the dashboard share."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest
from textual.widgets import Input

from ddptop.agent import rundir


@pytest.fixture(autouse=True)
def steady_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no cursor blink: what a picture shows of it would be a matter of the moment."""
    # To turn the blinking off would hide the cursor.
    monkeypatch.setattr(Input, "_toggle_cursor", lambda self: None)


@pytest.fixture
def quiet_run() -> Iterator[str]:
    """A run that is alive as far as anybody can tell: a process that sleeps stands for its torchrun."""
    sleeper = subprocess.Popen(["sleep", "600"])
    process = rundir.identify(sleeper.pid)
    name = f"quiet-{sleeper.pid}"
    directory = rundir.create(
        rundir.Run(
            name, name, "toy.py", (), 2, "gloo", "cpu", time.time_ns(), True, supervisor=process, torchrun=process
        )
    )
    yield name
    shutil.rmtree(directory.path)
    sleeper.kill()
    sleeper.wait()


@pytest.fixture
def ended_run() -> Iterator[str]:
    """A run that has ended with exit code 3."""
    name = f"ended-{time.monotonic_ns() % 10**9}"
    now = time.time_ns()
    directory = rundir.create(
        rundir.Run(
            name, name, "toy.py", (), 2, "gloo", "cpu", now - 10**10, True,
            state="failed", exit_code=3, ended_at_ns=now, cause="rank 1: ValueError: bad lr", cause_rank=1,
        )
    )  # fmt: skip
    yield name
    shutil.rmtree(directory.path)
