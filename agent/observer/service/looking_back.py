"""Questions about the history of the run: the recorder answers them, so that no slow disk holds up the relay."""

from __future__ import annotations

import queue
from functools import partial

from ddptop.agent import wire
from ddptop.agent.control.wakeup import WakeUp
from ddptop.agent.observer.record.recorder import Recorder
from ddptop.agent.observer.service.service import Door


class LookingBack:
    """The questions under way; for the relay's thread."""

    def __init__(self, recorder: Recorder, door: Door, wake: WakeUp) -> None:
        self._recorder = recorder
        self._door = door
        self._wake = wake
        self._answers: queue.SimpleQueue[tuple[bytes, list[wire.HistoryAnswer]]] = queue.SimpleQueue()

    def ask(self, asker: bytes, query: wire.History) -> None:
        """Have the recorder answer a question; `send` sends the answer."""
        self._recorder.ask(query, partial(self._take, asker))

    def _take(self, asker: bytes, answer: list[wire.HistoryAnswer]) -> None:
        self._answers.put((asker, answer))
        self._wake.set()

    def send(self) -> None:
        """Send what has been answered."""
        while not self._answers.empty():
            asker, answer = self._answers.get()
            for each in answer:
                self._door.send(asker, wire.encode(each))
