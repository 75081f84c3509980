"""The run's events, newest last: a list beside the views, and one to search in with all of the screen for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region

from ddptop.agent.client.frame import Frame
from ddptop.agent.wire.frames import NO_HOSTS, EventLine
from ddptop.tui.drawing import units
from ddptop.tui.drawing.filtered import Filtered
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.drawing.lines import Row, ScrolledLines
from ddptop.tui.drawing.theme import Ink
from ddptop.tui.model.sentences import with_rank

_MARKS: Final = {"info": " ", "warning": "!", "error": "✗"}
_LEAD: Final = len("12:00:00 ! ")
"""Cells before the text of an event."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of an event: time, level and beginning, or what follows of one that is shown whole."""

    event: EventLine
    text: str
    first: bool = True
    ground: int = 0
    """Cells of the ground that the line stands on, where its event is the chosen one."""


def lines_of(event: EventLine, width: int, most: int, *, chosen: bool = False, host: str = "") -> list[Line]:
    """Return an event in so many cells and at most so many lines, with the `host` of its rank where that is named."""
    ground = width if chosen else 0
    whole = with_rank(event.text, event.rank, host)
    if most <= 1:
        return [Line(event, units.shorten(whole, width - _LEAD), ground=ground)]
    texts = units.wrapped(whole, max(1, width - _LEAD))
    if len(texts) > most:
        texts[most - 1 :] = [units.shorten(" ".join(texts[most - 1 :]), max(1, width - _LEAD))]
    return [Line(event, text, first=not index, ground=ground) for index, text in enumerate(texts)]


class EventList(ScrolledLines[Line], can_focus=False):
    """The events of a run; the newest is in sight, and whole."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.border_title = "events"
        self._events: Sequence[EventLine] | None = None
        """All events of the frame shown last."""
        self._hosts = NO_HOSTS

    def row_of(self, item: Line, ink: Ink) -> Row:
        """Return one line of an event."""
        event = item.event
        hue = ink[f"level-{event.level}" if event.level in _MARKS else "level-info"]
        body = Segment(item.text, hue if event.level != "info" else ink["value"])
        lead = [Segment(" " * _LEAD)]
        if item.first:
            lead = [
                Segment(time.strftime("%H:%M:%S ", time.localtime(event.at)), ink["faint"]),
                Segment(_MARKS.get(event.level, " ") + " ", hue),
            ]
        if not item.ground:
            return [*lead, body]
        ground = ink.ground("row-chosen")
        row = [*lead, body, Segment(" " * max(0, item.ground - _LEAD - cell_len(item.text)))]
        return [Segment(text, ground if style is None else style + ground) for text, style, _ in row]

    def show(self, frame: Frame) -> None:
        if frame.events != self._events or frame.hosts.by_rank != self._hosts.by_rank:
            self._events, self._hosts = frame.events, frame.hosts
            self.lay_out()

    def host_of(self, event: EventLine) -> str:
        """Return the name of the host of an event's rank, where there are several."""
        return self._hosts.name_of(event.rank)

    @property
    def room(self) -> tuple[int, int]:
        """Cells and lines in sight; beside them the bar that shows where the list stands, as soon as it is long."""
        return max(0, self.size.width - self.scrollbar_size_vertical), self.size.height

    def on_resize(self) -> None:
        """Wrap at another width."""
        self.lay_out()
        super().on_resize()

    def lay_out(self) -> None:
        """Make the lines of the events anew."""
        width, height = self.room
        shown = self._events or ()
        lines = [line for event in shown[:-1] for line in lines_of(event, width, 1, host=self.host_of(event))]
        for event in shown[-1:]:
            lines += lines_of(event, width, height, host=self.host_of(event))
        self.show_items(lines, empty="nothing has happened yet")


class EventSearch(Filtered, EventList, can_focus=True):
    """The events of a run, of which one is chosen and shown whole; only those that match the filter."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Search", id="events.filter", key_display="/",
                tooltip="Show only events with these words in them"),
        Binding("escape", "clear", "All events", id="events.clear", tooltip="Show all events again"),
        Binding("up", "move(-1)", "Event above", id="events.up", tooltip="Choose the event above", show=False),
        Binding("down", "move(1)", "Event below", id="events.down", tooltip="Choose the event below", show=False),
        Binding("pageup", "page(-1)", "Page up", id="events.page_up", tooltip="Go up by a page", show=False),
        Binding("pagedown", "page(1)", "Page down", id="events.page_down", tooltip="Go down by a page", show=False),
        Binding("home", "oldest", "Oldest", id="events.oldest", tooltip="Choose the oldest event", show=False),
    ]  # fmt: skip
    begins = "events.filter"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.chosen: EventLine | None = None
        """The event that is shown whole; None for the newest, whichever that is."""
        self._matching: list[EventLine] = []
        self._laid_out_for: list[str] = []
        """The words that the lines now shown match."""
        self._chosen_at = 0
        """The line at which the chosen event begins."""

    @property
    def count(self) -> tuple[int, int]:
        """How many events are shown, and of how many."""
        return len(self._matching), len(self._events or ())

    @property
    def _index(self) -> int:
        """The place of the chosen event."""
        if self.chosen in self._matching:
            return self._matching.index(self.chosen)
        return len(self._matching) - 1

    def lay_out(self) -> None:
        words = self.words
        self._matching = [
            event
            for event in self._events or ()
            if all(word in with_rank(event.text, event.rank, self.host_of(event)).lower() for word in words)
        ]
        if self.chosen not in self._matching:
            self.chosen = None
        index, (width, height) = self._index, self.room
        lines: list[Line] = []
        for number, event in enumerate(self._matching):
            if number == index:
                self._chosen_at = len(lines)
                lines += lines_of(event, width, height, chosen=True, host=self.host_of(event))
            else:
                lines += lines_of(event, width, 1, host=self.host_of(event))
        clear = keys_of(self)["events.clear"]
        empty = f"no event has these words; {clear} shows all again" if words else "nothing has happened yet"
        gone = 0
        if self._matching and words == self._laid_out_for:
            # Of more than are held, the oldest go: what is in sight stays where it is.
            places = (number for number, line in enumerate(self._items) if line.event == self._matching[0])
            gone = next(places, 0)
        self._laid_out_for = words
        self.show_items(lines, dropped=gone, empty=empty)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Follow the newest only where no other one was chosen, also where the end is in sight."""
        super().watch_scroll_y(old_value, new_value)
        self.following = self.following and self.chosen is None

    def renew(self) -> None:
        """Show what matches, with the chosen one in sight: the newest where the one before does not match."""
        self.lay_out()
        self.following = self.chosen is None
        self.post_message(self.Followed())
        super().renew()
        if self._matching:
            event = self._matching[self._index]
            height = len(lines_of(event, *self.room, host=self.host_of(event)))
            region = Region(0, self._chosen_at, self.size.width, height)
            self.scroll_to_region(region, animate=False, force=True)

    def _choose(self, index: int) -> None:
        if not self._matching:
            return
        index = max(0, min(len(self._matching) - 1, index))
        self.following = index == len(self._matching) - 1
        self.chosen = None if self.following else self._matching[index]
        self.renew()

    def follow(self) -> None:
        """Choose the newest, also once there is a newer one."""
        self._choose(len(self._matching))

    def action_move(self, by: int) -> None:
        """Choose a neighbour."""
        self._choose(self._index + by)

    def action_page(self, by: int) -> None:
        """Choose the event a page further."""
        self._choose(self._index + by * max(1, self.size.height - 1))

    def action_oldest(self) -> None:
        """Choose the first."""
        self._choose(0)

    def on_click(self, event: events.Click) -> None:
        """Choose the event under the mouse."""
        offset = event.get_content_offset(self)
        line = None if offset is None else offset.y + self.scroll_offset.y
        if line is not None and line < len(self._items):
            self._choose(self._matching.index(self._items[line].event))
