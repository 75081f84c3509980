"""A program in a pseudo-terminal, and a dashboard that runs in one."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from support.harness import DEADLINE_S

TESTS = Path(__file__).parents[2]
"""The folder of `support`, which a program of its own does not know."""
RUN = """
from support.screens.frames import MovingSource
from ddptop.tui.app.program import run_dashboard
source = MovingSource()
"""


class Terminal:
    """A program in a pseudo-terminal of 100x30, and what it wrote there."""

    def __init__(self, code: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONDONTWRITEBYTECODE": "1"}
        prelude = f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
        self.process = subprocess.Popen(
            [sys.executable, "-c", prelude + code],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=environment,
        )  # fmt: skip
        os.close(slave)
        self.written = b""

    def read_until(self, wanted: bytes, timeout: float = DEADLINE_S) -> None:
        """Read until `wanted` was written."""
        deadline = time.monotonic() + timeout
        while wanted not in self.written:
            assert time.monotonic() < deadline, self.written[-2000:]
            self._read(0.1)

    def wait(self) -> int:
        """Read to the end and return the exit code."""
        deadline = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "still running"
            self._read(0.05)
        self._read(0.2)
        return self.process.returncode

    def _read(self, timeout: float) -> None:
        if select.select([self.master], [], [], timeout)[0]:
            try:
                self.written += os.read(self.master, 65536)
            except OSError:
                time.sleep(0.01)

    def close(self) -> None:
        """End what is left."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
