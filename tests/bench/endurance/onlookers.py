"""Processes that look at a run: a dashboard in a pseudo-terminal, or lines; begun, and ended in each of their ways."""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

DDPTOP: Final = (sys.executable, "-m", "ddptop.tui.cli.main")
KEPT: Final = 1 << 16
"""Bytes of its output that are kept of an onlooker: the newest."""
LEAVE_S: Final = 60.0
"""How long an onlooker may take to end when it is told to."""
ROWS, COLUMNS = 40, 120
PAINT: Final = re.compile(r"\x1b(\[[0-9;?<>=]*[A-Za-z]|\][^\x07]*\x07|[^\[\]])|[─-⣿]")
ALTERNATE: Final = b"\x1b[?1049h"
"""What a terminal is sent when a dashboard takes it over."""
CRASH: Final = re.compile(r'File "[^"]*/tui/|/tui/[a-z/]+\.py:\d+ in ')
"""In a traceback of the command line's own; those of ranks are shown by it, and are in order."""


class Onlooker:
    """A process of the command line that goes on until it is told to leave, and all that it prints is read."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, *, terminal: bool) -> None:
        """Start `ddptop` with these arguments, in a terminal of its own or writing to a pipe."""
        self.arguments = tuple(arguments)
        self.terminal = terminal
        self._output: collections.deque[bytes] = collections.deque()
        self._kept = 0
        self.read = 0
        """Bytes that it has printed so far."""
        self.painted = False
        """True once it is a dashboard with a screen."""
        environment = {**os.environ, **environment, "TERM": "xterm-256color"}
        if terminal:
            self._master, slave = pty.openpty()
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            stdin = stdout = slave
        else:
            self._master, stdout = os.pipe()
            stdin = subprocess.DEVNULL
        try:
            self.process = subprocess.Popen(
                [*DDPTOP, *arguments], stdin=stdin, stdout=stdout, stderr=stdout, env=environment, cwd=cwd,
                start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(stdout)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    @property
    def output(self) -> str:
        """The newest of what it has printed, without the sequences that paint it."""
        return PAINT.sub("", b"".join(list(self._output)).decode(errors="replace"))

    def _read(self) -> None:
        # A terminal whose last process has left gives EIO.
        with contextlib.suppress(OSError):
            while data := os.read(self._master, 65536):
                self.read += len(data)
                self.painted = self.painted or ALTERNATE in data
                self._output.append(data)
                self._kept += len(data)
                while self._kept - len(self._output[0]) > KEPT:
                    self._kept -= len(self._output.popleft())
        os.close(self._master)

    def type(self, keys: bytes) -> None:
        """Press keys."""
        if self.terminal:
            with contextlib.suppress(OSError):
                os.write(self._master, keys)

    def leave(self, way: str) -> str | None:
        """End it in one of its ways, and say what is wrong with how it ended."""
        if (code := self.process.poll()) is not None:
            self._reader.join(timeout=5)
            return None if code in self._codes() else f"{self} ended by itself with {code}: {self.output[-800:]!r}"
        deadline = time.monotonic() + LEAVE_S
        if way == "q":
            # From within a dialog the first key only closes it, and before the first screen it is lost.
            while self.process.poll() is None and time.monotonic() < deadline:
                for keys in (b"\x1b", b"q"):
                    self.type(keys)
                    time.sleep(0.5)
        else:
            self.process.send_signal(getattr(signal, way))
        try:
            code = self.process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return f"{self} did not end within {LEAVE_S:.0f} s of {way}: {self.output[-500:]!r}"
        finally:
            self._reader.join(timeout=5)
        # The exit code of a dashboard is that of its run, where that has ended: 143 of one that was killed.
        number = getattr(signal, way, 0)
        expected = {-number, 128 + number} if number else {*range(128), 143}
        if code in expected | self._codes() and (number or not CRASH.search(self.output)):
            return None
        return f"{self} ended by {way} with {code}: {self.output[-800:]!r}"

    def _codes(self) -> set[int]:
        """Return how it may end by itself: lines end with the run, a verb may refuse, a dashboard stays."""
        if self.painted:
            return set()
        return set() if CRASH.search(self.output) else set(range(256))

    def __str__(self) -> str:
        return f"`ddptop {' '.join(self.arguments)}` (pid {self.pid})"


def ways(onlooker: Onlooker) -> tuple[str, ...]:
    """Return the ways in which it may be told to leave."""
    return ("q", "SIGTERM", "SIGHUP", "SIGKILL") if onlooker.terminal else ("SIGTERM", "SIGINT", "SIGKILL")
