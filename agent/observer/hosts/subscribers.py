"""The observers of other hosts that subscribe to what a door publishes: at a branch the head, at the head branches.

This module knows no socket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

WATCHED: Final = b"watched"
"""A topic without messages: as long as another observer subscribes to it, somebody looks on there, and what the ranks
publish is handed on ten times a second."""
_MOST_TOPICS: Final = 8_192
"""Topics of one observer: a few, and the records of ranks in sight one by one."""


class Subscribers:
    """Their subscriptions; for use from one thread."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """Know nobody; `changed` is called when somebody subscribes to something else than before."""
        self._changed = changed
        self._topics: dict[bytes, set[bytes]] = {}

    def subscribe(self, peer: bytes, topic: bytes) -> bool:
        """Take note of a subscription; return False where there are too many."""
        topics = self._topics.setdefault(peer, set())
        if len(topics) >= _MOST_TOPICS and topic not in topics:
            return False
        topics.add(topic)
        self._changed()
        return True

    def unsubscribe(self, peer: bytes, topic: bytes) -> None:
        """Take note of the end of a subscription."""
        self._topics.get(peer, set()).discard(topic)
        self._changed()

    def forget(self, peer: bytes) -> None:
        """Take note that nobody is there any more."""
        if self._topics.pop(peer, None):
            self._changed()

    def takers(self, topic: bytes) -> tuple[bytes, ...]:
        """Return those who subscribe to a topic or to its beginning."""
        beginnings = [topic[:length] for length in range(len(topic) + 1)]
        return tuple(peer for peer, topics in self._topics.items() if not topics.isdisjoint(beginnings))

    @property
    def topics(self) -> set[bytes]:
        """What anybody subscribes to."""
        return set().union(*self._topics.values())

    @property
    def is_watched(self) -> bool:
        """Say whether anybody looks on at another host."""
        return any(WATCHED in topics for topics in self._topics.values())

    def __bool__(self) -> bool:
        return bool(self._topics)
