"""The choice of events that are written: all, but a repeated event once with its count.

A faulty rank may send the same event ten times a second for a week.  Of different ones the file keeps the newest
(`ring`).  This module knows no file.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.record import recording
from ddptop.agent.record.recording import Row
from ddptop.agent.text import clean, clean_line, shorten

REPEAT_S: Final = 60.0
"""An event that repeats within this time, and is no action and no end of a rank, is counted and not written again."""
_LONGEST_TEXT: Final = 4096
"""Bytes."""
_LONGEST_LINE: Final = 400
"""Characters of an event that a reader accepts; see `agent.wire.incoming.Line`."""
_LONGEST_NAME: Final = 200
_REMEMBERED: Final = 1_000
"""Newest events that can be recognized when they repeat."""
_LEVELS: Final = frozenset({"info", "warning", "error"})
_LARGEST: Final = 2**63 - 1

Source = int | str | None
"""The rank of an event, by its sender; None where the event names none, `OBSERVER` for those of the observer."""
OBSERVER: Final = "observer"


@dataclass(slots=True)
class _Written:
    """An event in the file, and the number of its occurrences."""

    event: wire.Event
    payload: bytes
    """Its present content in the file."""
    times: int
    last_at: float
    changed: bool = False


class Flood:
    """Makes rows of events for the file."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recent: OrderedDict[tuple[object, ...], _Written] = OrderedDict()

    def rows_of(self, event: wire.Event, source: Source) -> list[Row]:
        """Return the rows for an event; none where it repeats another.

        Args:
            event: a result of `sound`.
            source: the source of the event.
        """
        now = self._clock()
        key = (source, event.rank, event.level, event.text, event.who)
        before = self._recent.get(key)
        # A rank that was started anew may end again in the same words: that is an end of its own.
        is_counted = not event.action and not (source == OBSERVER and event.rank is not None)
        if before is not None and is_counted and now - before.last_at <= REPEAT_S:
            before.times, before.last_at, before.changed = before.times + 1, now, True
            self._recent.move_to_end(key)
            return []
        payload = wire.encode(event)
        if not event.action:
            self._recent[key] = _Written(event, payload, 1, now)
            self._recent.move_to_end(key)
        rows = [recording.row(event, payload)]
        if len(self._recent) > _REMEMBERED:
            _, oldest = self._recent.popitem(last=False)
            rows += _counted(oldest)
        return rows

    def settle(self) -> list[Row]:
        """Return the rows that bring the counts in the file up to date."""
        return [row for written in self._recent.values() if written.changed for row in _counted(written)]


def _counted(written: _Written) -> list[Row]:
    if not written.changed:
        return []
    written.changed = False
    times = f" ({written.times:,} times within a minute of each other)"
    # A reader cuts the text off at its limit, and the count is at the end.
    text = clean_line(written.event.text, _LONGEST_LINE - len(times))
    payload = wire.encode(msgspec.structs.replace(written.event, text=text + times))
    row = recording.rewritten(written.payload, payload)
    written.payload = payload
    return [row]


def sound(event: wire.Event, world: int, now_ns: int) -> wire.Event:
    """Return an event that can be stored: its time fits into 64 bits, its texts are bounded, and its rank exists."""
    return wire.Event(
        event.at_ns if 0 <= event.at_ns <= _LARGEST else now_ns,
        shorten(event.text, _LONGEST_TEXT),
        event.rank if event.rank is None or 0 <= event.rank < world else None,
        event.level if event.level in _LEVELS else "info",
        clean(event.action, 40),
        clean(event.who, _LONGEST_NAME),
    )
