"""Runtime directories of tests: each has a path short enough for sockets, and ends what runs in it before it goes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ddptop.agent.end import escalation
from ddptop.agent.run import rundir
from ddptop.agent.run.files import marks
from support.harness import until


@contextlib.contextmanager
def base_of_its_own() -> Iterator[Path]:
    """Make a runtime directory; at the end its observers and ranks are ended first, since they would write into it.

    Not for runs for which the test itself stands: it would end itself.
    """
    base = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))
    try:
        yield base
    finally:
        for folder in base.iterdir():
            _end(folder)
        shutil.rmtree(base, ignore_errors=True)


def marked(folder: Path) -> Path:
    """Mark a folder of the test as a run directory, in which ddptop may write and remove."""
    with contextlib.suppress(FileExistsError):
        marks.write(folder, marks.Mark(marks.RUN))
    return folder


def _end(folder: Path) -> None:
    try:
        directory = rundir.RunDir(folder)
        run = directory.read()
    except rundir.RunDirError:
        return
    observer = run.observer
    if observer is not None and rundir.is_alive(observer):
        assert observer.pid != os.getpid(), f"{folder}: the test says that it is its observer"
        # It may end by itself between the two lines.
        with contextlib.suppress(ProcessLookupError):
            os.kill(observer.pid, signal.SIGKILL)
        until(lambda: not rundir.is_alive(observer), f"the end of the observer of {folder}")
    escalation.end(directory, run, escalation.Grace(0.0), lambda line: None)
