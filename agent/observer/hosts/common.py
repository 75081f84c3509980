"""What the records of all hosts have alike: the events of each host, and the verdicts of the head.

A branch tells the head its events, the head tells the branches what it records; what was told while there was no link
comes again with the next one, and each event is recorded once.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.observer.hosts.elsewhere import Elsewhere
from ddptop.agent.record.recorder import Recorder

MOST: Final = 500
"""Newest events, and verdicts, that another host is told again."""
_MOST_SEEN: Final = 8_192
"""Events that are recognized when they come again."""
_PIECE: Final = 100
"""Events, or verdicts, in one message."""

_Key = tuple[int, int | None, str, str]


class CommonRecord:
    """The events and verdicts that this host has recorded; for use from the relay's thread, `record` from any."""

    def __init__(self, recorder: Recorder, elsewhere: Elsewhere) -> None:
        """Know nothing yet."""
        self._recorder = recorder
        self._elsewhere = elsewhere
        self._events: deque[wire.Event] = deque(maxlen=MOST)
        """Those of this host, and at the head those of all."""
        self._verdicts: OrderedDict[int, wire.Verdict] = OrderedDict()
        self._new: list[wire.Event] = []
        self._judged: dict[int, wire.Verdict] = {}
        self._seen: OrderedDict[_Key, wire.Event] = OrderedDict()
        self._heard: dict[int, wire.Verdict] = {}
        """By number, the verdicts of the head that go on."""
        self._is_ready = False
        self.unshown: deque[wire.Event | wire.Verdict] = deque(maxlen=MOST)
        """Events and verdicts of other hosts that were recorded here, and that the model is still to take in."""

    @property
    def is_ready(self) -> bool:
        """Say whether it is known what an earlier observer has recorded here, so that other hosts may tell theirs."""
        if not self._is_ready and self._recorder.recorded_before is not None:
            self._is_ready = True
            for event in self._recorder.events_before:
                self.know(event)
        return self._is_ready

    def know(self, event: wire.Event) -> None:
        """Take note of an event that is recorded here."""
        self._seen[_key(event)] = event
        while len(self._seen) > _MOST_SEEN:
            with contextlib.suppress(KeyError):
                self._seen.popitem(last=False)

    def record(self, event: wire.Event) -> None:
        """Record an event that another host publishes, unless that is done."""
        if self.is_new(event):
            self._recorder.add(event)
            self.unshown.append(event)
            self.know(event)

    def note(self, event: wire.Event) -> None:
        """Take note of an event that is recorded here and published."""
        self.know(event)
        self._events.append(event)
        self._new.append(event)
        del self._new[:-MOST]

    def judge(self, verdict: wire.Verdict) -> None:
        """Record a verdict of this host."""
        self._recorder.judge(verdict)
        self._verdicts[verdict.number] = self._judged[verdict.number] = verdict
        self._verdicts.move_to_end(verdict.number)
        while len(self._verdicts) > MOST:
            self._judged.pop(self._verdicts.popitem(last=False)[0], None)

    def is_new(self, event: wire.Event) -> bool:
        """Say whether an event of another host is not recorded here."""
        return _key(event) not in self._seen

    def tell(self) -> None:
        """Tell other hosts what has come since the last call."""
        events, self._new = self._new, []
        judged, self._judged = self._judged, {}
        for payload in _messages(events, judged.values()):
            self._elsewhere.publish_all(wire.TOPIC_RECORD, payload)

    def all(self) -> Iterator[bytes]:
        """Return the messages for a host that has just been linked: the newest of all that is recorded here."""
        return _messages(self._events, self._verdicts.values())

    def take(self, told: wire.Recorded, host: str) -> None:
        """At a branch, record what the head has recorded; events of this host under the name that it has there."""
        for event in told.events:
            if not self.is_new(event):
                continue
            own = self._seen.get(_key(msgspec.structs.replace(event, text=event.text.removeprefix(f"{host}: "))))
            if own is None:
                self.record(event)
            else:
                self._recorder.rename(own, event)
                self.know(event)
        for verdict in told.verdicts:
            self._recorder.judge(verdict)
            self.unshown.append(verdict)
            if verdict.until_at_ns is None:
                self._heard[verdict.number] = verdict
            else:
                self._heard.pop(verdict.number, None)

    def finish(self, at_ns: int) -> None:
        """End the verdicts of the head that go on, with the run."""
        for verdict in self._heard.values():
            self._recorder.judge(msgspec.structs.replace(verdict, until_at_ns=max(at_ns, verdict.since_at_ns)))
        self._heard = {}


def _key(event: wire.Event) -> _Key:
    return event.at_ns, event.rank, event.action, event.text


def _messages(events: Iterable[wire.Event], verdicts: Iterable[wire.Verdict]) -> Iterator[bytes]:
    left, judged = list(events), list(verdicts)
    while left or judged:
        yield wire.encode(wire.Recorded(tuple(left[:_PIECE]), tuple(judged[:_PIECE])))
        left, judged = left[_PIECE:], judged[_PIECE:]
