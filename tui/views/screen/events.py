"""The run's event list, newest last."""

from __future__ import annotations

import time
from typing import Any, Final

from rich.segment import Segment

from ddptop.tui.drawing.lines import Roll, Row
from ddptop.tui.drawing.theme import Ink
from ddptop.tui.model.frame import EventLine, Frame

_MARKS: Final = {"info": " ", "warning": "!", "error": "✗"}


def event_row(event: EventLine, ink: Ink) -> Row:
    """Return one event: time, level, rank, text."""
    hue = ink[f"level-{event.level}" if event.level in _MARKS else "level-info"]
    named = event.rank is None or event.text.startswith(f"rank {event.rank} ")
    who = "" if named else f"rank {event.rank}: "
    return [
        Segment(time.strftime("%H:%M:%S ", time.localtime(event.at)), ink["faint"]),
        Segment(_MARKS.get(event.level, " ") + " ", hue),
        Segment(who, ink["label"]),
        Segment(event.text, hue if event.level != "info" else ink["value"]),
    ]


class EventList(Roll[EventLine], can_focus=False):
    """The events of a run; the newest is in sight."""

    def __init__(self, **options: Any) -> None:
        super().__init__(event_row, **options)
        self.border_title = "events"

    def show(self, frame: Frame) -> None:
        if frame.events != self._items or not self._empty:
            self.show_items(frame.events, empty="nothing has happened yet")
