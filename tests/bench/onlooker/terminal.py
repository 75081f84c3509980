"""A dashboard in a pseudo-terminal: its screen, the keys that it gets, and what its process takes."""

from __future__ import annotations

import fcntl
import os
import pty
import queue
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from typing import Final

import load
import psutil
import pyte

WIDTH: Final = 200
HEIGHT: Final = 50


class Terminal:
    """The dashboard in a pseudo-terminal."""

    def __init__(self, run: str) -> None:
        self.begun = time.monotonic()
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
        self._master = master
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ddptop.tui.cli.main", "attach", run],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**load.with_bytecode(), "TERM": "xterm-256color", "COLORTERM": "truecolor"},
        )  # fmt: skip
        os.close(slave)
        self.process = psutil.Process(self._process.pid)
        self.output = b""

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def read(self, seconds: float) -> bytes:
        """Return what it paints within the time, as soon as there is anything."""
        if not select.select([self._master], [], [], seconds)[0]:
            return b""
        try:
            piece = os.read(self._master, 1 << 20)
        except OSError:  # Linux: nobody has the other end open any more
            return b""
        self.output += piece
        return piece

    def drain(self, seconds: float) -> None:
        """Let it paint."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.read(left)
        self.output = b""

    def wait(self, shown: Callable[[str], bool], seconds: float) -> float | None:
        """Return the time at which the screen shows something, None if it does not within `seconds`."""
        screen = pyte.Screen(WIDTH, HEIGHT)
        stream = pyte.ByteStream(screen)
        pieces: queue.Queue[tuple[float, bytes]] = queue.Queue()
        over = threading.Event()

        def listen() -> None:
            while not over.is_set():
                if piece := self.read(0.02):
                    pieces.put((time.monotonic(), piece))

        # A terminal does not keep its program waiting, but pyte takes longer for a screen than the dashboard.
        reader = threading.Thread(target=listen)
        reader.start()
        try:
            until = time.monotonic() + seconds
            while (left := until - time.monotonic()) > 0:
                try:
                    at, piece = pieces.get(timeout=left)
                except queue.Empty:
                    return None
                stream.feed(piece)
                if shown("\n".join(screen.display)):
                    return at
            return None
        finally:
            over.set()
            reader.join()

    def cpu(self, seconds: float, observer: psutil.Process) -> tuple[float, float]:
        """Return its CPU time over the next seconds and that of an observer, in percent of one core."""
        processes = self.process, observer
        before, began = [sum(each.cpu_times()[:2]) for each in processes], time.monotonic()
        self.drain(seconds)
        took = time.monotonic() - began
        mine, other = (
            100 * (sum(each.cpu_times()[:2]) - spent) / took for each, spent in zip(processes, before, strict=True)
        )
        return mine, other

    def memory(self) -> float:
        """Return its resident memory in MiB."""
        return self.process.memory_info().rss / 2**20

    def leave(self) -> None:
        """Quit it."""
        self.press(b"q")
        until = time.monotonic() + 5
        while self._process.poll() is None and time.monotonic() < until:
            self.read(0.1)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._master)
