"""The events of the run, all of the screen for them: chosen one by one, and searched."""

from __future__ import annotations

from typing import Final

from ddptop.agent.observer.model.changes import EVENTS
from ddptop.agent.text import plural
from ddptop.tui.drawing import units
from ddptop.tui.model.frame import Frame
from ddptop.tui.screens.with_roll import RollScreen
from ddptop.tui.views.screen.events import EventSearch

_OLDER: Final = "older ones: ddptop events"


class EventScreen(RollScreen):
    """All events that the dashboard has, with the run's state above them."""

    opened_by = "events"

    @property
    def roll(self) -> EventSearch:
        """The events."""
        return self.query_one(EventSearch)

    def make_roll(self) -> EventSearch:
        """Return the list."""
        return EventSearch()

    def show(self, frame: Frame) -> None:
        """Take in what has happened since."""
        self.roll.show(frame)
        self.show_caption(frame)

    def caption(self, frame: Frame) -> tuple[str, str, str]:
        """Return the run, and how many of its events are shown."""
        shown, all_ = self.roll.count
        if typed := self.roll.typed:
            below = f"{typed}  {units.count(shown)} of {plural(all_, 'event')}"
        elif all_ >= EVENTS:
            below = f"the newest {plural(all_, 'event')}; {_OLDER} {frame.run}"
        else:
            below = plural(all_, "event")
        return frame.run, frame.state, below

    def action_follow(self) -> None:
        """Choose the newest event."""
        self.roll.follow()
