"""A run that is alive as far as anybody can tell: a process that sleeps stands for its observer and its torchrun."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator

from ddptop.agent.run import rundir
from support.harness import WAITING


@contextlib.contextmanager
def run() -> Iterator[str]:
    """Make one, return its name, and take it away with the block."""
    sleeper = subprocess.Popen(WAITING)
    process = rundir.identify(sleeper.pid)
    name = f"quiet-{sleeper.pid}"
    directory = rundir.create(
        rundir.Run(name, name, "toy.py", (), 2, "gloo", "cpu", time.time_ns(), True, observer=process, torchrun=process)
    )
    yield name
    shutil.rmtree(directory.path)
    sleeper.kill()
    sleeper.wait()
