"""Tools of the tests: run the command line, wait for a condition, look into /proc."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ddptop.agent import rundir


def ddptop(*arguments: str, timeout: float = 60, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end, without a terminal."""
    command = [sys.executable, "-m", "ddptop.tui.cli", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, cwd=cwd, stdin=subprocess.DEVNULL, check=False
    )


def until(condition: Callable[[], object], what: str, timeout: float = 30.0) -> None:
    """Wait until `condition` holds, and fail with `what` when it does not in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:.0f} s: {what}"
        time.sleep(0.02)


def carriers(run_id: str) -> list[int]:
    """Return the processes whose environment carries the run's marker, read from /proc alone."""
    wanted = f"{rundir.MARKER}={run_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
