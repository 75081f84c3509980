"""The list of runs as a screen of its own, where there is no room for it beside a run."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.screen import Screen

from ddptop.tui.link.fleet import Fleet
from ddptop.tui.model.frame import Frame
from ddptop.tui.views.runs import RunList
from ddptop.tui.views.screen.keybar import KeyBar


class RunsScreen(Screen[None]):
    """All runs, one line for each."""

    def __init__(self, fleet: Fleet, frame: Frame) -> None:
        """Prepare; the arguments are those of `RunList`."""
        super().__init__()
        self._fleet = fleet
        self._frame = frame

    def compose(self) -> ComposeResult:
        """The list, and its keys."""
        yield RunList(self._fleet, self._frame)
        yield KeyBar()
