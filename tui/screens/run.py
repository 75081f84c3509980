"""The main screen: the run, its ranks, their losses, what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.widgets import Footer

from ddptop.tui.frame import Frame
from ddptop.tui.screens.live import Asked, LiveScreen
from ddptop.tui.widgets.events import EventList
from ddptop.tui.widgets.header import Header
from ddptop.tui.widgets.log import LogView
from ddptop.tui.widgets.panels import PanelGrid

if TYPE_CHECKING:
    from ddptop.tui.widgets.plot import LossPlot


class RankAsked(Asked):
    """Show all about a rank."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank


class RunScreen(LiveScreen):
    """Header, a panel for each rank, plot, events and the chosen rank's log."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(frame, frame.ranks[0].rank if frame.ranks else 0)
        self._plot: LossPlot | None = None

    def compose(self) -> ComposeResult:
        """Lay out the parts; the plot comes after the first paint."""
        yield Header(self.frame)
        yield PanelGrid(self.frame)
        with Horizontal(id="below"):
            yield Container(id="losses")
            with Vertical(id="side"):
                yield EventList()
                yield LogView()
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin with the panels; load what is heavy once they are there."""
        super().on_mount()
        self.query_one(PanelGrid).focus()
        self.call_after_refresh(self._add_plot)

    def _add_plot(self) -> None:
        from ddptop.tui.widgets.plot import LossPlot

        self._plot = LossPlot()
        self.query_one("#losses").mount(self._plot)
        self.show(self.frame)

    def show(self, frame: Frame) -> None:
        """Hand the picture to the widgets."""
        self.query_one(Header).show(frame)
        grid = self.query_one(PanelGrid)
        grid.show(frame)
        self.query_one(EventList).show(frame)
        chosen = next((rank for rank in frame.ranks if rank.rank == grid.chosen), None)
        if chosen is not None:
            self.query_one(LogView).show(chosen)
        if self._plot is not None:
            self._plot.show(frame.ranks, grid.chosen)

    def choose(self, rank: int) -> None:
        """Choose a rank, as the user may have done on another screen."""
        self.query_one(PanelGrid).chosen = rank

    @on(PanelGrid.Chosen)
    def _follow(self, message: PanelGrid.Chosen) -> None:
        self.rank = message.rank
        self.show(self.frame)

    @on(PanelGrid.Opened)
    def _open(self, message: PanelGrid.Opened) -> None:
        self.post_message(RankAsked(message.rank))
