"""One rank's own screen: its facts, its history, its loss and its log."""

from __future__ import annotations

from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from ddptop.tui.drawing.lines import Page, Row
from ddptop.tui.model.frame import Frame
from ddptop.tui.model.metrics import METRICS
from ddptop.tui.screens.with_plot import PlottedScreen
from ddptop.tui.views.plot.placeholder import PlotPlaceholder
from ddptop.tui.views.rank import fact_rows, history_rows
from ddptop.tui.views.screen.header import Header
from ddptop.tui.views.screen.keybar import KeyBar
from ddptop.tui.views.screen.log import LogView

_GROUP: Final = Binding.Group("Rank", compact=True)


class RankScreen(PlottedScreen):
    """Facts, histories, plot and log of one rank."""

    is_of_rank = True

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", id="rank.back", tooltip="Return to all ranks"),
        Binding(
            "right,tab",
            "neighbour(1)",
            "Next",
            id="rank.next",
            tooltip="Show the next rank",
            priority=True,
            group=_GROUP,
        ),
        Binding(
            "left,shift+tab",
            "neighbour(-1)",
            "Previous",
            id="rank.previous",
            tooltip="Show the previous rank",
            priority=True,
            group=_GROUP,
        ),
    ]

    def __init__(self, frame: Frame, rank: int) -> None:
        super().__init__(frame, rank, alone=True)

    def compose(self) -> ComposeResult:
        """Lay out the parts; the plot comes after the first paint."""
        yield Header(self.frame)
        with Horizontal(id="rank"):
            yield Page(id="facts")
            with Vertical(id="beside"):
                with Horizontal(id="history"):
                    yield Page(id="histories", can_focus=False)
                    yield PlotPlaceholder()
                yield LogView()
        yield KeyBar()

    def on_mount(self) -> None:
        """Show the rank; its facts can be scrolled."""
        self.query_one("#facts").focus()

    def on_resize(self) -> None:
        """Draw for another width."""
        self.call_after_refresh(lambda: self.show(self.frame))

    def show(self, frame: Frame) -> None:
        """Pass the frame to the widgets."""
        super().show(frame)
        rank = frame.rank(self.rank)
        if rank is None:
            return
        page, beside = self.query_one("#facts", Page), self.query_one("#histories", Page)
        width = page.scrollable_content_region.width or 40
        histories: list[Row] = []
        if beside.size:
            space = beside.scrollable_content_region.size
            height = 2 if space.height > 2 * len(METRICS) else 1
            beside.show_rows(history_rows(frame, rank.rank, space.width, beside.ink, height=height))
        else:
            histories = history_rows(frame, rank.rank, width, page.ink)
        page.show_rows(fact_rows(rank, frame, width, page.ink, histories))
        self.query_one(LogView).show(rank, still=frame.view_held_s is not None)

    @property
    def logs_in_sight(self) -> frozenset[int]:
        """The log of the rank is a part of the screen."""
        return frozenset({self.rank})

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the arrows to the crosshair while there is one."""
        return not (action == "neighbour" and self.crossing) and super().check_action(action, parameters)

    def action_back(self) -> None:
        """Return to all ranks, with this one chosen."""
        self.dismiss(self.rank)

    def action_neighbour(self, by: int) -> None:
        """Show another rank, after the last one the first."""
        ranks = list(self.frame.values("rank"))
        if self.rank in ranks:
            self.choose(ranks[(ranks.index(self.rank) + by) % len(ranks)])

    def choose(self, rank: int) -> None:
        """Show another rank, from the top."""
        self.query_one("#facts").scroll_home(animate=False)
        super().choose(rank)
