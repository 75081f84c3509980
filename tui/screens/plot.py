"""The plot, all of the screen for it."""

from __future__ import annotations

from typing import ClassVar, Final

from rich.segment import Segment
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from ddptop.tui.drawing.lines import Page, Row
from ddptop.tui.screens.with_plot import PlottedScreen
from ddptop.tui.views.plot.placeholder import PlotPlaceholder
from ddptop.tui.views.screen.header import Header
from ddptop.tui.views.screen.keybar import KeyBar

_HINTS: Final = frozenset(
    (
        "plot.metric",
        "plot.zoom_in",
        "plot.zoom_out",
        "plot.back",
        "plot.forward",
        "plot.log",
        "plot.smooth",
        "plot.cross",
    )
)


class PlotScreen(PlottedScreen):
    """One metric of the ranks over the run."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,f", "back", "Back", id="plot.leave", tooltip="Return to where you came from"),
        Binding("tab", "neighbour(1)", "Next rank", id="plot.next", tooltip="Choose the next rank"),
        Binding(
            "shift+tab", "neighbour(-1)", "Previous rank", id="plot.previous", tooltip="Choose the previous rank",
            show=False,
        ),
    ]  # fmt: skip

    def compose(self) -> ComposeResult:
        """Lay out the parts."""
        yield Header(self.frame)
        yield PlotPlaceholder()
        yield Page(id="hints")
        yield KeyBar()

    def _add_plot(self) -> None:
        super()._add_plot()
        self._name_keys()

    def _name_keys(self) -> None:
        """Name the keys that matter here, which the footer has no room for elsewhere."""
        page = self.query_one("#hints", Page)
        row: Row = []
        for active in self.active_bindings.values():
            if active.binding.id in _HINTS:
                key = self.app.get_key_display(active.binding)
                row += [
                    Segment(f" {key} ", page.ink["bold value"]),
                    Segment(active.binding.description, page.ink["label"]),
                ]
                row.append(Segment(" "))
        page.show_rows([row])

    def action_back(self) -> None:
        """Return, with the rank chosen here."""
        self.dismiss(self.rank)

    def action_neighbour(self, by: int) -> None:
        """Choose another rank, after the last one the first."""
        ranks = [rank.rank for rank in self.frame.ranks]
        if self.rank in ranks:
            self.rank = ranks[(ranks.index(self.rank) + by) % len(ranks)]
            self.show(self.frame)
