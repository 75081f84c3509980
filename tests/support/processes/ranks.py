"""Ranks of a training script without torchrun, forked from one process for which torch is imported once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from ddptop.agent.record import recording
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.wire.frames import ENDED
from support.harness import DEADLINE_S, free_port, until
from support.processes.kept import Kept

FORKED: Final = Path(__file__).with_name("forked.py")
"""The script of the kept process; not imported here, because it imports torch."""


class Ranks:
    """The ranks that have been started for one test."""

    def __init__(self, pid: int, output: Path) -> None:
        self.pid = pid
        """Process that has started them, and that leads their group."""
        self._output = output

    @property
    def said(self) -> str:
        """Return what all of them have printed."""
        return self._output.read_text()

    def file(self, suffix: str) -> Path:
        """Return a file beside that output."""
        return self._output.with_name(self._output.name + suffix)

    @property
    def code(self) -> int | None:
        """Return the exit code of the first that failed, 0 where none did, None before the last has ended."""
        file = self.file(".code")
        return int(text) if file.exists() and (text := file.read_text()) else None

    def wait(self, timeout: float = 2 * DEADLINE_S) -> int:
        """Return that exit code, once there is one."""
        until(lambda: self.code is not None, "the end of the ranks", timeout)
        assert self.code is not None
        return self.code


_KEPT: Final = Kept(FORKED)


@contextlib.contextmanager
def plain(script: Path, *arguments: str, world: int = 2, env: Mapping[str, str] | None = None) -> Iterator[Ranks]:
    """Start the ranks of a script as they are without the agent; they are ended with the block."""
    with _started(script, arguments, world, env or {}, None) as ranks:
        yield ranks


@contextlib.contextmanager
def observed(
    name: str, script: Path, *arguments: str, world: int = 2, env: Mapping[str, str] | None = None
) -> Iterator[tuple[RunDir, Ranks]]:
    """Start them under the agent, as a run by hand of this name, whose observer has gone when the block ends."""
    run = rundir.create(rundir.Run(name, name, str(script), (), world, "gloo", "cpu", time.time_ns(), launched=False))
    with _started(script, arguments, world, env or {}, run) as ranks:
        until(lambda: len(list(recording.read_ranks(run.database))) == world, "all ranks are heard")
        ranks.file(".go").touch()
        yield run, ranks
    until(lambda: run.read().state in ENDED, "the end of the run")


@contextlib.contextmanager
def _started(
    script: Path, arguments: tuple[str, ...], world: int, env: Mapping[str, str], run: RunDir | None
) -> Iterator[Ranks]:
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **env}
    if run is not None:
        told |= {rundir.DIRECTORY_VARIABLE: str(run.path), rundir.MARKER: run.read().run_id}
    output = script.with_name(f"{script.stem}-{time.monotonic_ns()}.out")
    request = {
        "world": world,
        "words": [str(script), *arguments],
        "cwd": str(script.parent),
        "env": {**os.environ, **told},
        "output": str(output),
        "agent": run is not None,
    }
    output.touch()
    ranks = Ranks(_KEPT.start(request), output)
    try:
        yield ranks
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(ranks.pid, signal.SIGKILL)
