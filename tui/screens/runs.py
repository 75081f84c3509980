"""The list of runs as a screen of its own, where there is no room for it beside a run."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.screen import Screen

from ddptop.tui.link.fleet import Fleet
from ddptop.tui.model.frame import Frame
from ddptop.tui.widgets.keybar import KeyBar
from ddptop.tui.widgets.runlist import RunList


class RunsScreen(Screen[None]):
    """All runs, one line for each."""

    def __init__(self, fleet: Fleet, frame: Frame) -> None:
        super().__init__()
        self._fleet = fleet
        self._frame = frame

    def compose(self) -> ComposeResult:
        """The list, and its keys."""
        yield RunList(self._fleet, self._frame)
        yield KeyBar()
