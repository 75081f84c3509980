"""A program in a pseudo-terminal, and a dashboard that runs in one.

What it writes is always read, as a terminal does: a program that cannot write does not look at its keys either.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
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
        self.before = termios.tcgetattr(slave)
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONDONTWRITEBYTECODE": "1"}
        prelude = f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
        self.process = subprocess.Popen(
            [sys.executable, "-c", prelude + code],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=environment,
        )  # fmt: skip
        os.close(slave)
        self.written = b""
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self, width: int, height: int) -> None:
        """Give the terminal another size."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        # As the system does where the terminal is that of the session.
        os.killpg(self.process.pid, signal.SIGWINCH)

    def read_until(self, wanted: bytes, timeout: float = DEADLINE_S) -> None:
        """Read until `wanted` was written."""
        deadline = time.monotonic() + timeout
        while wanted not in self.written:
            assert time.monotonic() < deadline, self.written[-2000:]
            time.sleep(0.02)

    def wait(self) -> int:
        """Wait for the end, read what was written up to it, and return the exit code."""
        code = self.process.wait(DEADLINE_S)
        # Not for ever: a process that it has left behind may have the terminal open.
        self._reader.join(1.0)
        return code

    def _read(self) -> None:
        while not self._closing.is_set():
            try:
                if not select.select([self.master], [], [], 0.1)[0]:
                    continue
                piece = os.read(self.master, 65536)
            except OSError:  # Linux: nobody has the other end open any more; or the test has closed it
                return
            if not piece:
                return
            self.written += piece

    def close(self) -> None:
        """End what is left."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._closing.set()
        self._reader.join()
        os.close(self.master)
