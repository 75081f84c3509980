"""The messages for one target, in order, until they are delivered, are too old, or too many wait."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from ddptop.agent.onlookers.notify.messages import Message
from ddptop.agent.onlookers.notify.targets import Target, Undelivered

MOST: Final = 100
"""Messages that wait for one target at most; the oldest is lost first."""
FIRST_S: Final = 1.0
"""Seconds from an attempt that has failed to the next one; twice as many after each further one."""
LONGEST_S: Final = 60.0
OLDEST_S: Final = 6 * 3600.0
"""A message that has waited for so long is lost."""


class Delivery:
    """The messages for one target. A thread of its own delivers them: another target, which hangs, holds nothing up."""

    def __init__(self, target: Target, say: Callable[[str], None]) -> None:
        """Have nothing to deliver, and no thread yet.

        Args:
            target: where to.
            say: takes a line where the target begins to fail, and where it is back.
        """
        self.shown = target.shown
        """The target without secrets."""
        self._target = target
        self._say = say
        self._waiting: deque[tuple[float, Message]] = deque()
        """Each with the moment from which on it waits."""
        self._lost = 0
        self._failures = 0
        self._due = 0.0
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._stopped = threading.Event()

    @property
    def is_empty(self) -> bool:
        """True where nothing waits."""
        return not self._waiting

    def put(self, message: Message, now: float) -> None:
        """Have one more message delivered."""
        with self._lock:
            if len(self._waiting) >= MOST:
                self._waiting.popleft()
                self._lost += 1
            self._waiting.append((now, message))
        self._news.set()

    def turn(self, now: float) -> float | None:
        """Make an attempt where one is due; return the seconds until the next, None where nothing waits."""
        with self._lock:
            while self._waiting and now - self._waiting[0][0] > OLDEST_S:
                self._waiting.popleft()
                self._lost += 1
            if not self._waiting:
                return None
            if now < self._due:
                return self._due - now
            entry, lost = self._waiting[0], self._lost
        try:
            self._target.send(replace(entry[1], lost=lost) if lost else entry[1])
        except Undelivered as problem:
            self._failures += 1
            pause_s = max(problem.after_s, min(LONGEST_S, FIRST_S * 2 ** min(self._failures - 1, 10)))
            self._due = now + pause_s
            if self._failures == 1:
                self._say(f"not delivered, and tried again: {problem}")
            return float(pause_s)
        with self._lock:
            self._lost -= lost
            # Where too many wait it may be gone.
            if self._waiting and self._waiting[0] is entry:
                self._waiting.popleft()
        if self._failures:
            self._say(f"{self.shown} takes messages again")
        self._failures, self._due = 0, 0.0
        return 0.0 if self._waiting else None

    def start(self) -> None:
        """Begin to deliver."""
        threading.Thread(target=self._run, name="courier", daemon=True).start()

    def stop(self) -> None:
        """Deliver nothing of what waits."""
        self._stopped.set()
        self._news.set()

    def _run(self) -> None:
        while True:
            # Before the attempt: what comes after it wakes this up.
            self._news.clear()
            if self._stopped.is_set():
                return
            pause_s = self.turn(time.monotonic())
            if pause_s is None:
                self._news.wait()
            elif pause_s:
                self._stopped.wait(pause_s)
