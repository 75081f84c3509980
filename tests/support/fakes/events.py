"""The events of an observer, taken by a test instead of by a relay."""

from __future__ import annotations

from typing import Any

from ddptop.agent import wire
from ddptop.agent.control.events import Events


class SaidEvents(Events):
    """Notes what is said."""

    def __init__(self) -> None:
        nobody: Any = None
        super().__init__(nobody)
        self.all: list[wire.Event] = []

    def add(self, event: wire.Event) -> None:
        """Note it."""
        self.all.append(event)

    @property
    def texts(self) -> list[str]:
        """What they say."""
        return [event.text for event in self.all]
