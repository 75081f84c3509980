"""The publications of the supervisor: the state of the run, and its events."""

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
    """The PUB socket of a supervisor, and the queue of its events."""

    def __init__(self, context: zmq.Context[Any], directory: RunDir) -> None:
        """Bind; raises `zmq.ZMQError` where that is impossible."""
        address = directory.address("supervisor", "pub")
        self._events: queue.SimpleQueue[wire.Event] = queue.SimpleQueue()
        self._last: wire.RunState | None = None
        self._due = 0.0
        self._pub = context.socket(zmq.PUB)
        self._pub.linger = LINGER_MS
        self._pub.setsockopt(zmq.MAXMSGSIZE, wire.MAX_COMMAND_BYTES)
        self._pub.bind(address)
        seal(address)

    def say(self, text: str, level: str = "info", rank: int | None = None) -> None:
        """Publish an event of this moment; may be called from any thread."""
        self.add(wire.Event(time.time_ns(), text, rank, level))

    def add(self, event: wire.Event) -> None:
        """Publish an event; may be called from any thread."""
        self._events.put(event)

    def publish(self, state: wire.RunState, recorder: Recorder | None) -> None:
        """Send and record the queued events, and send the state once a second and at every change."""
        with contextlib.suppress(queue.Empty):
            while True:
                event = self._events.get_nowait()
                _log.log(logging.INFO if event.level == "info" else logging.WARNING, "%s", event.text)
                self._pub.send_multipart([wire.TOPIC_EVENT, wire.encode(event)])
                if recorder is not None:
                    recorder.add(event)
        last, now = self._last, time.monotonic()
        if last is None or now >= self._due or (last.state, last.ending) != (state.state, state.ending):
            self._last, self._due = state, now + _EVERY_S
            self._pub.send_multipart([wire.TOPIC_RUN, wire.encode(state)])

    def close(self) -> None:
        """Close the socket, after its messages have been sent or its linger is over."""
        self._pub.close()
