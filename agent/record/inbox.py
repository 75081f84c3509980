"""What waits for the recorder's thread: a queue of bounded size between the network and the disk.

While the disk is slow, steps are dropped and counted, and so are the oldest events, of which as many stay as the file
keeps; the newest `Hello` and `Beat` of a rank, the newest of a verdict and the newest frames replace those before them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ddptop.agent import wire
from ddptop.agent.record.history.question import Question
from ddptop.agent.record.recording import MOST_VERDICTS
from ddptop.agent.record.ring import MOST_EVENTS
from ddptop.agent.run.identity import Process
from ddptop.agent.wire.frames import NO_HOSTS, HostFrames

MOST_BYTES: Final = 64 << 20
"""Bytes of messages that wait."""
MOST: Final = 100_000
"""Messages that wait."""
_EVENT_BYTES: Final = 600
"""An event is stored without its payload; its text has at most 400 characters."""


@dataclass(frozen=True)
class Begin:
    """The process of a rank was found: the records that come from now on may be of its generation."""

    rank: int
    generation: int
    process: Process | None = None
    """Another one of the same generation counts its steps from one again."""


@dataclass(frozen=True)
class Own:
    """An event of the observer itself."""

    message: wire.Event


@dataclass(frozen=True)
class Renamed:
    """An event that was recorded here gets the text that it has in the records of other hosts."""

    before: wire.Event
    after: wire.Event


class Told(NamedTuple):
    """A message of a rank."""

    message: wire.Telemetry | wire.NumberedSteps
    payload: bytes


@dataclass(frozen=True)
class Judged:
    """A verdict, new or changed."""

    verdict: wire.Verdict


@dataclass(frozen=True)
class Looked:
    """Where ranks stand at one moment."""

    inspections: tuple[wire.Inspection, ...]


@dataclass(frozen=True)
class LastFrames:
    """The run and its ranks at one moment, encoded."""

    run: bytes
    ranks: Sequence[bytes]
    """In order."""


@dataclass(frozen=True)
class Asked:
    """A question about the history."""

    query: Question
    answered: Callable[[wire.HistoryAnswer], None]
    """Called with each part of the answer, in the recorder's thread."""
    hosts: HostFrames = NO_HOSTS
    """Those of a run on several, with what is known of their clocks."""


Item = Begin | Own | Renamed | Told | Judged | Looked | LastFrames | Asked


class Inbox:
    """The queue; any thread may put, one thread takes."""

    def __init__(self) -> None:
        self.dropped = 0
        """Messages for which there was no room."""
        self._lock = threading.Lock()
        self._items: deque[Item] = deque()
        self._latest: dict[tuple[Any, ...], Told] = {}
        self._judged: dict[int, Judged] = {}
        """By number."""
        self._frames: list[LastFrames] = []
        """At most one."""
        self._events: deque[Own | Told] = deque()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Bytes of the messages that wait."""
        return self._bytes

    @property
    def has_room(self) -> bool:
        """Say whether records that are not urgent may be put."""
        return self._bytes < MOST_BYTES // 2 and len(self._items) < MOST // 2

    def put(self, item: Item) -> bool:
        """Put an item; return False where it was dropped."""
        with self._lock:
            if isinstance(item, Told):
                message = item.message
                if type(message) is wire.Beat or type(message) is wire.Sampled:
                    self._latest[type(message), message.rank, 0] = item
                    return True
                if type(message) is wire.Hello:
                    self._latest[wire.Hello, message.rank, message.generation] = item
                    return True
                if type(message) is wire.Event:
                    return self._put_event(Told(message, b""))
                if self._bytes + len(item.payload) > MOST_BYTES or len(self._items) >= MOST:
                    self.dropped += 1
                    return False
            elif isinstance(item, Judged):
                self._judged[item.verdict.number] = item
                if len(self._judged) > MOST_VERDICTS:
                    del self._judged[next(iter(self._judged))]
                return True
            elif isinstance(item, LastFrames):
                self._frames = [item]
                return True
            elif isinstance(item, Own):
                return self._put_event(item)
            elif isinstance(item, Asked) and len(self._items) >= MOST:
                return False
            self._bytes += _size(item)
            self._items.append(item)
            return True

    def _put_event(self, item: Own | Told) -> bool:
        if len(self._events) >= MOST_EVENTS:
            self._events.popleft()
            self.dropped += 1
        self._events.append(item)
        return True

    def take(self, most: int) -> list[Item]:
        """Return the oldest items, of about `most` bytes; none where none wait."""
        with self._lock:
            taken: list[Item] = [*self._latest.values(), *self._judged.values(), *self._frames]
            self._latest, self._judged, self._frames = {}, {}, []
            size = 0
            while self._events and size < most:
                taken.append(self._events.popleft())
                size += _EVENT_BYTES
            size = 0
            while self._items and size < most:
                item = self._items.popleft()
                size += _size(item)
                taken.append(item)
            self._bytes -= size
            return taken

    def __bool__(self) -> bool:
        return bool(self._items or self._events or self._latest or self._judged or self._frames)


def _size(item: Item) -> int:
    return len(item.payload) or _EVENT_BYTES if isinstance(item, Told) else _EVENT_BYTES
