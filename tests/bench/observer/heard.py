"""The verdicts of the observer of a run, heard at its socket by nobody's code but ZeroMQ's and the wire's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import zmq

from ddptop.agent import wire
from ddptop.agent.run.rundir import RunDir


class Word(NamedTuple):
    """One frame of the run."""

    at: float
    """When it came, in seconds since the epoch."""
    message: wire.RunFrame

    @property
    def first(self) -> wire.Verdict | None:
        """The verdict that an onlooker shows."""
        return self.message.verdicts[0] if self.message.verdicts else None


class Heard:
    """All that the observer says about verdicts, taken in by a thread until it is closed."""

    def __init__(self, directory: RunDir) -> None:
        self.words: list[Word] = []
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.linger = 0
        self._socket.subscribe(wire.TOPIC_RUN)
        self._socket.connect(directory.address("observer", "pub"))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._over.is_set():
            if self._socket.poll(100):
                _, payload = self._socket.recv_multipart()
                message = wire.read_frame(payload)
                if isinstance(message, wire.RunFrame):
                    self.words.append(Word(time.time(), message))

    def wait(self, wanted: Callable[[Word], bool], seconds: float) -> Word | None:
        """Return the first message that is wanted, heard already or within so many seconds; None without one."""
        deadline, seen = time.monotonic() + seconds, 0
        while time.monotonic() < deadline:
            for word in self.words[seen:]:
                seen += 1
                if wanted(word):
                    return word
            time.sleep(0.02)
        return None

    def close(self) -> None:
        """Hear no more."""
        self._over.set()
        self._thread.join()
        self._context.destroy(linger=0)
