"""The frames of the run for those who look on: made four times a second while somebody does, and else not at all."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.observer.model.run_model import RunModel
from ddptop.agent.observer.relay.door.door import Door
from ddptop.agent.run.rundir import RunDirError
from ddptop.agent.wire import EACH_RECORD, RankFrame

EVERY_S: Final = 0.25
"""Seconds between two frames."""
ROWS_S: Final = 1.0
"""Seconds between two `Rows`."""
_ROWS: Final = 128
"""Ranks in one `Rows`, however much each of them has to say."""


class Frames:
    """Publishes the frames of one model; for use from one thread."""

    def __init__(self, model: RunModel, world: int, door: Door) -> None:
        """Publish nothing yet."""
        self._model = model
        self._world = world
        self._door = door
        self._due = self._rows_due = 0.0
        self._sent: dict[int, RankFrame] = {}
        """By rank, its frame in the last `Rows` that it was in."""
        self._newcomers: set[bytes] = set()

    @property
    def pause_s(self) -> float | None:
        """Seconds until the next `turn` is due; None where nobody looks on."""
        return max(0.0, self._due - time.monotonic()) if self._is_watched else None

    @property
    def _is_watched(self) -> bool:
        return self._door.wants(wire.TOPIC_FRAME)

    def greet(self, topics: Collection[bytes]) -> None:
        """Publish soon all that these new subscriptions are to."""
        self._newcomers |= set(topics)
        self.hurry()

    def hurry(self) -> None:
        """Publish the next frame at once."""
        self._due = 0.0

    def turn(self, *, at_once: bool = False) -> None:
        """Publish what is due; `at_once` a frame of this moment in any case."""
        now = time.monotonic()
        if not self._is_watched or (now < self._due and not at_once):
            return
        self._due = now + EVERY_S
        try:
            self._model.look()
            self._model.survey()
        except RunDirError:
            # Removed under our eyes: what the ranks say is all there is.
            pass
        self._model.store.advance(time.time())
        run = self._model.framer.frame()
        # The ranks first: who has the frame of the run has those of its ranks.
        self._publish_ranks()
        self._publish_rows(now)
        self._newcomers.clear()
        self._door.publish(wire.TOPIC_FRAME, wire.encode(run))

    def _publish_ranks(self) -> None:
        ranks = range(self._world) if self._world <= EACH_RECORD else sorted(self._door.ranks_wanted())
        for rank in ranks:
            topic = wire.topic_of(wire.TOPIC_RANK, rank)
            if rank < self._world and self._door.wants(topic):
                self._door.publish(topic, wire.encode(self._model.framer.rank(rank)))

    def _publish_rows(self, now: float) -> None:
        if not self._door.wants(wire.TOPIC_ROWS):
            self._sent.clear()
            return
        if any(wire.TOPIC_ROWS.startswith(topic) for topic in self._newcomers):
            self._sent.clear()
        elif now < self._rows_due:
            return
        self._rows_due = now + ROWS_S
        changed = [each for each in self._model.framer.ranks() if each is not self._sent.get(each.rank)]
        self._sent.update((each.rank, each) for each in changed)
        rows = [msgspec.structs.replace(each, losses=()) if each.losses else each for each in changed]
        for first in range(0, len(rows), _ROWS):
            payload = wire.encode(wire.Rows(time.time(), tuple(rows[first : first + _ROWS])))
            self._door.publish(wire.TOPIC_ROWS, payload)
