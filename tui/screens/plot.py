"""The plot, all of the screen for it."""

from __future__ import annotations

from typing import ClassVar, Final

from rich.segment import Segment
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.drawing.lines import Page, Row, packed
from ddptop.tui.screens.with_plot import PlottedScreen
from ddptop.tui.views.plot.placeholder import PlotPlaceholder
from ddptop.tui.views.screen.header import Header
from ddptop.tui.views.screen.keybar import KeyBar

_HINTS: Final = (
    (("plot.metric",), "Metric"),
    (("plot.whole",), "Whole run"),
    (("plot.zoom_in", "plot.zoom_out"), "Zoom"),
    (("plot.back", "plot.forward"), "Scroll"),
    (("plot.log",), "Log"),
    (("plot.band",), "Band"),
    (("plot.smooth",), "Smooth"),
    (("plot.cross",), "Read values"),
)
"""Ids of actions that share a label, the most important first."""
_CROSSHAIR: Final = (
    (("crosshair.far_left", "crosshair.far_right"), "Move far"),
    (("crosshair.first", "crosshair.last"), "First, last"),
    *_HINTS[1:4],
)
"""The same while there is a crosshair; the keys that move and close it are in the key bar."""


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

    def on_mount(self) -> None:
        """Name the keys of the plot, or of the crosshair while there is one."""
        self.bindings_updated_signal.subscribe(self, lambda _: self.call_after_refresh(self._name_keys))

    def on_resize(self) -> None:
        """Name as many as there is room for."""
        self.call_after_refresh(self._name_keys)

    def _name_keys(self) -> None:
        """Name the keys that matter here, which the footer has no room for elsewhere."""
        if not self.is_attached or not self.query("#hints"):
            return
        page = self.query_one("#hints", Page)
        offered = {active.binding.id for active in self.active_bindings.values() if active.enabled}
        keys = keys_of(self)
        pieces: list[Row] = []
        for names, label in _CROSSHAIR if self.crossing else _HINTS:
            if offered.issuperset(names):
                shown = [keys[name] for name in names]
                joined = ("" if all(len(key) == 1 for key in shown) else " ").join(shown)
                pieces.append([Segment(f"{joined} ", page.ink["bold value"]), Segment(label, page.ink["label"])])
        page.show_rows([[Segment(" "), *packed(pieces, page.size.width - 2)]])

    def action_back(self) -> None:
        """Return, with the rank chosen here."""
        self.dismiss(self.rank)

    def action_neighbour(self, by: int) -> None:
        """Choose another rank, after the last one the first."""
        ranks = [rank.rank for rank in self.frame.ranks]
        if self.rank in ranks:
            self.rank = ranks[(ranks.index(self.rank) + by) % len(ranks)]
            self.show(self.frame)
