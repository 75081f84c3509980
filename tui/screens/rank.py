"""One rank's own screen: all that is known about it, its loss and its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical
from textual.widgets import Footer

from ddptop.tui.frame import Frame
from ddptop.tui.screens.live import LiveScreen
from ddptop.tui.widgets.facts import fact_rows
from ddptop.tui.widgets.header import Header
from ddptop.tui.widgets.lines import Page
from ddptop.tui.widgets.log import LogView

if TYPE_CHECKING:
    from ddptop.tui.widgets.plot import LossPlot


class RankScreen(LiveScreen):
    """Facts, loss and log of one rank."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", id="rank.back", tooltip="Return to all ranks"),
        Binding(
            "right,tab",
            "neighbour(1)",
            "Next",
            id="rank.next",
            key_display="→",
            tooltip="Show the next rank",
            priority=True,
        ),
        Binding(
            "left,shift+tab",
            "neighbour(-1)",
            "Previous",
            id="rank.previous",
            key_display="←",
            tooltip="Show the previous rank",
            priority=True,
        ),
    ]

    def __init__(self, frame: Frame, rank: int) -> None:
        super().__init__(frame, rank)
        self._plot: LossPlot | None = None

    def compose(self) -> ComposeResult:
        """Lay out the parts; the plot comes after the first paint."""
        yield Header(self.frame)
        with Horizontal(id="rank"):
            yield Page(id="facts")
            with Vertical(id="beside"):
                yield Container(id="losses")
                yield LogView()
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Show the rank; its facts can be scrolled."""
        super().on_mount()
        self.query_one("#facts").focus()
        self.call_after_refresh(self._add_plot)

    def _add_plot(self) -> None:
        from ddptop.tui.widgets.plot import LossPlot

        places = self.query("#losses")
        if not places:
            # It was left while the library was being loaded.
            return
        self._plot = LossPlot()
        places.first().mount(self._plot)
        self.show(self.frame)

    def on_resize(self) -> None:
        """Draw for another width."""
        self.call_after_refresh(lambda: self.show(self.frame))

    def show(self, frame: Frame) -> None:
        """Hand the picture to the widgets."""
        self.query_one(Header).show(frame)
        rank = next((rank for rank in frame.ranks if rank.rank == self.rank), None)
        if rank is None:
            return
        page = self.query_one("#facts", Page)
        page.show_rows(fact_rows(rank, frame, page.scrollable_content_region.width or 40, page.ink))
        self.query_one(LogView).show(rank)
        if self._plot is not None:
            self._plot.show([rank], rank.rank)

    def action_back(self) -> None:
        """Return to all ranks, with this one chosen."""
        self.dismiss(self.rank)

    def action_neighbour(self, by: int) -> None:
        """Show another rank, after the last one the first."""
        ranks = [rank.rank for rank in self.frame.ranks]
        if self.rank in ranks:
            self.choose(ranks[(ranks.index(self.rank) + by) % len(ranks)])

    def choose(self, rank: int) -> None:
        """Show another rank, from the top."""
        self.query_one("#facts").scroll_home(animate=False)
        super().choose(rank)
