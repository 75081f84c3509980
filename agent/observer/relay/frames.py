"""The frames of the run: for those who look on, four times a second while somebody does, and for the record."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.observer.model.run_model import RunModel
from ddptop.agent.observer.service.service import Service
from ddptop.agent.record.recorder import Recorder
from ddptop.agent.run.rundir import Run, RunDirError

EVERY_S: Final = 0.25
"""Seconds between two frames."""
SOON_S: Final = 0.1
"""Seconds between a frame and the next one for new subscriptions."""
OUTLINE_S: Final = 10.0
"""Seconds between two outlines where nothing has changed but figures."""
UNWATCHED_S: Final = 1.0
"""Seconds between two moments of the model, and two frames for other hosts, while nobody looks on."""
RECORD_S: Final = 2.0
"""Seconds between two moments that are recorded at least: what is known of a run whose machine is switched off."""
_RECORD_SHARE: Final = 300
"""Of a large group moments are recorded so seldom that this takes one part in so many of a core."""
_PARTS: Final = 4
"""Each rank of a large group is in one of so many frames' rows: a pause for all of them would be long."""
_MOST: Final = wire.MAX_MESSAGE_BYTES - (4 << 10)
"""Bytes of the frames in one message."""
_KNOWN_S: Final = 2.0
"""Seconds after the start in which a recording that another process holds is waited for."""
_CLOSING_RECALL_S: Final = 1.0
"""Seconds before the last frames in which the recording of an earlier observer is read."""
_RECALL_S: Final = 0.03
"""Seconds of a turn in which the recording of an earlier observer is read."""


class Frames:
    """Publishes the frames of one model; for use from one thread."""

    def __init__(self, model: RunModel, world: int, service: Service, recorder: Recorder) -> None:
        """Publish nothing yet; as long as another process holds the recording, the recorder does not know it."""
        self._model = model
        self._recorder = recorder
        self.known_by = time.monotonic() + _KNOWN_S
        """Until then nothing is said that an earlier observer may have recorded otherwise."""
        self._world = world
        self._service = service
        self.own_ranks: Collection[int] | None = None
        """The ranks of this host, while the observer of another host shows all of them; None: all are shown here."""
        self._due = self._second_due = self._record_due = 0.0
        self._outline: object = None
        """What was told by the last outline, which came at `_outlined_at`."""
        self._outlined_at = -math.inf
        self._said: dict[int, str] = {}
        """By rank, its state by its own word."""
        self._has_changed = False
        """True where that of a rank here has changed since the last frame of them for another host."""
        self._part = 0
        """The part of the ranks that the next rows are of."""
        self._new: set[bytes] = set()
        """Subscriptions since the last frame."""
        self._made_at = -math.inf
        self._recorded_at = -math.inf
        self._record_pause_s = 0.0 if world <= wire.EACH_RECORD else UNWATCHED_S
        """Seconds between two recordings of frames at least, whatever changes."""
        self._recorded_state = ""
        """That of the run in the frames that were recorded last."""

    @property
    def due(self) -> float:
        """The time of the next frame by the monotonic clock; infinite while nobody wants one."""
        return self._due if self._is_watched or self._is_followed else math.inf

    @property
    def _is_watched(self) -> bool:
        """True while somebody looks on, here or at another host."""
        topics = wire.TOPIC_RUN, wire.TOPIC_RANK + b"/", *((wire.TOPIC_RANKS,) if self.own_ranks is None else ())
        return any(map(self._service.wants, topics)) or self._service.shows_ranks

    @property
    def _is_followed(self) -> bool:
        """True while the observer of another host wants to know once a second how things are here."""
        return any(map(self._service.wants, (wire.TOPIC_OUTLINE, wire.TOPIC_RANKS)))

    def subscribe(self, topics: Collection[bytes]) -> None:
        """Publish soon all that these new subscriptions are to: of many at the same moment each needs the same."""
        self._new.update(topics)
        self._model.hurry()
        self._second_due = 0.0
        self._due = min(self._due, self._made_at + SOON_S)

    def hurry(self) -> None:
        """Publish the next frame at once."""
        self._due = self._second_due = 0.0

    def note(self, beat: wire.Beat) -> None:
        """Take in a sign of life: another state of a rank here is known at once to the observer of another host."""
        if self._said.get(beat.rank) != beat.state:
            self._said[beat.rank] = beat.state
            self._has_changed |= beat.rank in (self.own_ranks or ())

    def turn(self, *, at_once: bool = False) -> None:
        """Publish what is due; `at_once` a frame of this moment in any case."""
        now, is_watched = time.monotonic(), self._is_watched
        has_changed, self._has_changed = self._has_changed, False
        if now < self._due and not (at_once or has_changed):
            return
        is_readable = self.recall(now + _RECALL_S)
        is_late = not is_readable and now > self.known_by
        if not (self._model.is_recalled or is_late or at_once):
            # Without what an earlier observer has recorded a frame would not be true.
            self._due = now if is_readable else now + EVERY_S
            return
        # What changes is an event with its time, also where nobody looks on.
        self._due = now + (EVERY_S if is_watched else UNWATCHED_S)
        # Removed under our eyes, what the ranks say is all there is.
        with contextlib.suppress(RunDirError):
            self._model.look()
            if is_watched or self.own_ranks is not None:
                self._model.survey()
        self._model.store.advance(time.time())
        # Who opens the run while nobody answers is not to see a pause that is over.
        has_news = self._model.store.situation.state != self._recorded_state
        # Frames of a large group take long, and its state may change many times a second.
        if now >= self._record_due or (has_news and now >= self._recorded_at + self._record_pause_s):
            self._record()
        if not (is_watched or self._is_followed):
            return
        self._made_at = now
        run = self._model.framer.frame()
        is_second = at_once or has_changed or now >= self._second_due
        # The ranks first: who has the frame of the run has those of its ranks.
        self._publish_ranks()
        if is_second or self.own_ranks is None:
            self._publish_rows()
        if is_second:
            self._second_due = now + UNWATCHED_S - EVERY_S / 2
            self._publish_outline(run, now)
        self._new.clear()
        if self._service.wants(wire.TOPIC_RUN):
            self._service.publish(wire.TOPIC_RUN, _encoded(run))

    def finish(self, run: Run | None) -> None:
        """Record the last frames, of this moment; who looks on gets them once the record of the run is written.

        Where what an earlier observer has recorded was not read, those that it recorded stay, unless the run is over.

        Args:
            run: the record of the run with its end, where it is over.
        """
        self._model.hurry()
        self.recall(time.monotonic() + _CLOSING_RECALL_S)
        # As above.
        with contextlib.suppress(RunDirError):
            self._model.look()
            self._model.survey()
        if run is not None:
            self._model.store.know_run(run)
        self._model.store.advance(time.time())
        if run is not None or self._model.is_recalled:
            self._record()
        self._record_due = self._due = math.inf

    def _record(self) -> None:
        """Have the moment that the model has come to recorded in place of the one before."""
        began = time.monotonic()
        framer = self._model.framer
        run, self._recorded_state = _encoded(framer.frame()), self._model.store.situation.state
        self._recorder.keep(run, [wire.encode(framer.rank(rank)) for rank in range(self._world)])
        now = time.monotonic()
        self._recorded_at, self._record_due = now, now + max(RECORD_S, _RECORD_SHARE * (now - began))

    def _publish_outline(self, run: wire.RunFrame, now: float) -> None:
        hosts = tuple((each.host, each.state, each.ranks, each.gone) for each in run.on_hosts)
        outline = run.state, run.cause, tuple(each.number for each in run.verdicts), hosts
        is_awaited = now >= self._outlined_at + OUTLINE_S or self._is_new(wire.TOPIC_OUTLINE)
        if (outline != self._outline or is_awaited) and self._service.wants(wire.TOPIC_OUTLINE):
            self._outline, self._outlined_at = outline, now
            self._service.publish(wire.TOPIC_OUTLINE, wire.encode(msgspec.structs.replace(run, events=())))

    def _is_new(self, topic: bytes) -> bool:
        return any(topic.startswith(new) for new in self._new)

    def recall(self, deadline: float) -> bool:
        """Read on in what an earlier observer has recorded; return False where another process holds it."""
        is_readable = self._recorder.recorded_before is not None
        if is_readable and not self._model.is_recalled:
            self._model.recall(deadline)
            for rank, each in self._model.store.ranks.items():
                if each.heard_at is not None:
                    # Nobody listened since: its silence is counted from now on.
                    self._model.store.listen(rank, time.time())
        return is_readable

    def _publish_ranks(self) -> None:
        for rank in range(self._world) if self.own_ranks is None else self.own_ranks:
            topic = wire.topic_of(wire.TOPIC_RANK, rank)
            if self._service.wants(topic):
                self._service.publish(topic, wire.encode(self._model.framer.rank(rank)))

    def _publish_rows(self) -> None:
        if not self._service.wants(wire.TOPIC_RANKS):
            return
        ranks: Collection[int] = range(self._part, self._world, _PARTS)
        self._part = (self._part + 1) % _PARTS
        if self.own_ranks is not None:
            ranks = self.own_ranks
        elif self._is_new(wire.TOPIC_RANKS):
            ranks = range(self._world)
        rows: list[msgspec.Raw] = []
        size = 0
        for rank in ranks:
            payload = wire.encode(self._model.framer.rank(rank, short=True))
            if size + len(payload) > _MOST:
                self._service.publish(wire.TOPIC_RANKS, wire.encode(wire.EncodedRows(time.time(), tuple(rows))))
                rows, size = [], 0
            rows.append(msgspec.Raw(payload))
            size += len(payload)
        self._service.publish(wire.TOPIC_RANKS, wire.encode(wire.EncodedRows(time.time(), tuple(rows))))


def _encoded(run: wire.RunFrame) -> bytes:
    """Return a frame of the run as one message, without its oldest events where these are too many for that."""
    payload = wire.encode(run)
    while len(payload) > _MOST and run.events:
        run = msgspec.structs.replace(run, events=run.events[1 + len(run.events) // 2 :])
        payload = wire.encode(run)
    return payload
