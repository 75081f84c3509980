"""What the supervisor tells everybody who listens: the state of the run, and what happens in it."""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from typing import Any, Final

import zmq

from ddptop.agent import wire
from ddptop.agent.observer.orders import LINGER_MS
from ddptop.agent.observer.record.recorder import Recorder
from ddptop.agent.run.files.private import seal
from ddptop.agent.run.rundir import RunDir

_log = logging.getLogger("ddptop.supervisor")

_EVERY_S: Final = 1.0


class Broadcast:
    """The PUB socket of a supervisor, and the events that wait to go out on it."""

    def __init__(self, context: zmq.Context[Any], directory: RunDir) -> None:
        """Bind; raises `zmq.ZMQError` where that is impossible."""
        address = directory.address("supervisor", "pub")
        self._events: queue.SimpleQueue[wire.Event] = queue.SimpleQueue()
        self._told: wire.RunState | None = None
        self._due = 0.0
        self._pub = context.socket(zmq.PUB)
        self._pub.linger = LINGER_MS
        self._pub.setsockopt(zmq.MAXMSGSIZE, wire.MAX_COMMAND_BYTES)
        self._pub.bind(address)
        seal(address)

    def say(self, text: str, level: str = "info", rank: int | None = None) -> None:
        """Make an event of what has happened now; any thread may."""
        self.tell(wire.Event(time.time_ns(), text, rank, level))

    def tell(self, event: wire.Event) -> None:
        """Pass on an event; any thread may."""
        self._events.put(event)

    def publish(self, word: wire.RunState, recorder: Recorder | None) -> None:
        """Send what is new, and the state once a second and at every change; record the events."""
        with contextlib.suppress(queue.Empty):
            while True:
                event = self._events.get_nowait()
                _log.log(logging.INFO if event.level == "info" else logging.WARNING, "%s", event.text)
                self._pub.send_multipart([wire.TOPIC_EVENT, wire.encode(event)])
                if recorder is not None:
                    recorder.add(event)
        told, now = self._told, time.monotonic()
        if told is None or now >= self._due or (told.state, told.ending) != (word.state, word.ending):
            self._told, self._due = word, now + _EVERY_S
            self._pub.send_multipart([wire.TOPIC_RUN, wire.encode(word)])

    def close(self) -> None:
        """Let go of the socket, once what was sent has gone out."""
        self._pub.close()
