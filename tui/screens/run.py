"""The main screen: the run, its ranks, their losses, what happened; and the list of runs as a screen of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import ContentSwitcher

from ddptop.agent.client.frame import Frame
from ddptop.tui.link.fleet import Fleet
from ddptop.tui.screens.dialogs.transient import Transient
from ddptop.tui.screens.plot import PlottedScreen
from ddptop.tui.views.panels import PanelGrid
from ddptop.tui.views.plot.placeholder import PlotPlaceholder
from ddptop.tui.views.ranks import RankView
from ddptop.tui.views.runs import RunList
from ddptop.tui.views.screen.events import EventList
from ddptop.tui.views.screen.header import Header
from ddptop.tui.views.screen.keybar import KeyBar
from ddptop.tui.views.screen.log import LogView

if TYPE_CHECKING:
    from ddptop.tui.views.table.table import RankTable


@dataclass(frozen=True)
class View:
    """One way to look at the ranks."""

    id: str
    key: str
    tooltip: str
    make: Callable[[Frame], RankView]
    """Called when the view is first asked for, so that what it imports costs nothing until then."""


def _table(frame: Frame) -> RankView:
    from ddptop.tui.views.table.table import RankTable

    return RankTable(frame)


def _heatmap(frame: Frame) -> RankView:
    from ddptop.tui.views.heatmap.heatmap import Heatmap

    return Heatmap(frame)


def _timeline(frame: Frame) -> RankView:
    from ddptop.tui.views.timeline.timeline import TimelineView

    return TimelineView(frame)


VIEWS: Final = (
    View("panels", "1", "Show a panel for each rank", PanelGrid),
    View("table", "2", "Show a line for each rank, to sort and filter", _table),
    View("heatmap", "3", "Show one number of all ranks over time", _heatmap),
    View("timeline", "4", "Show one step of all ranks on one time axis", _timeline),
)
"""In the order of their keys; the first is shown at the start."""
PATIENCE_S: Final = 1.0
"""Seconds for which a view may wait for its numbers before it is painted without them."""
_LOOK_S: Final = 0.02
_GROUP: Final = Binding.Group("View", compact=True)


class RunScreen(PlottedScreen):
    """Header, one of the views of the ranks, plot, events and the chosen rank's log."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            view.key,
            f"view('{view.id}')",
            view.id.capitalize(),
            id=f"view.{view.id}",
            tooltip=view.tooltip,
            show=len(VIEWS) > 1,
            group=_GROUP,
        )
        for view in VIEWS
    ]

    class Viewed(Message):
        """The user has chosen a view of the ranks."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, frame: Frame, first: str = VIEWS[0].id) -> None:
        super().__init__(frame, frame.ranks[0].rank if frame.ranks else 0)
        self._first = next((view for view in VIEWS if view.id == first), VIEWS[0])
        self.hint = ""
        """The next key, in the last line of the header; empty where nothing is to be said."""
        self._untouched = True
        """True until a rank was chosen, by the user or because the run died of it."""

    def compose(self) -> ComposeResult:
        """Lay out the parts; the plot comes after the first paint, further views when they are asked for."""
        yield Header(self.frame)
        with ContentSwitcher(initial=self._first.id, id="views"):
            yield self._made(self._first)
        with Horizontal(id="below"):
            yield PlotPlaceholder()
            with Vertical(id="side"):
                yield EventList()
                yield LogView()
        yield KeyBar()

    def _made(self, view: View) -> RankView:
        made = view.make(self.frame)
        made.id = view.id
        made.set_reactive(RankView.chosen, self.rank)
        return made

    def on_mount(self) -> None:
        """Begin with the first view."""
        self.view.focus()

    @property
    def view(self) -> RankView:
        """The view now shown; the others get no frames."""
        switcher = self.query_one("#views", ContentSwitcher)
        return switcher.get_child_by_id(switcher.current or self._first.id, RankView)

    def action_view(self, name: str) -> None:
        """Show the ranks another way, with the same one chosen."""
        self.post_message(self.Viewed(name))
        switcher = self.query_one("#views", ContentSwitcher)
        if name == switcher.current:
            return
        if not switcher.query_children(f"#{name}"):
            made = self._made(next(view for view in VIEWS if view.id == name))
            made.display = False
            switcher.mount(made)
        switcher.current = name
        self.view.chosen = self.rank
        self.view.focus()
        self._turn_to(self.view)

    @work(group="view", exclusive=True)
    async def _turn_to(self, view: RankView) -> None:
        """Paint a view once it is whole; keys are its own before."""
        give_up = time.monotonic() + PATIENCE_S
        with self.app.batch_update():
            view.frame = self.frame
            while view.awaits_history(self.size.width) and self.is_current and time.monotonic() < give_up:
                await asyncio.sleep(_LOOK_S)
            self.show(self.frame)
        self.refresh(layout=True)

    def show(self, frame: Frame) -> None:
        """Pass the frame to the widgets."""
        self.query_one(Header).hint = self.hint
        super().show(frame)
        self.view.show(frame)
        if self._untouched and frame.cause_rank is not None and frame.rank(frame.cause_rank) is not None:
            # Not the first of its victims: the log beside it is read next.
            self._untouched = False
            self.choose(frame.cause_rank)
        self.query_one(EventList).show(frame)
        self._show_log()

    def _show_log(self) -> None:
        chosen = self.view.chosen_frame
        if chosen is not None:
            self.query_one(LogView).show(chosen, still=self.frame.view_held_s is not None)

    @property
    def in_sight(self) -> frozenset[int]:
        """Ranks of which single steps are shown."""
        # A frame may come before the view is there.
        return super().in_sight | (self.view.in_sight if self._shows else frozenset())

    @property
    def logs_in_sight(self) -> frozenset[int]:
        """The log of the chosen rank stands beside the others."""
        return frozenset({self.rank})

    def choose(self, rank: int) -> None:
        """Choose a rank, as the user may have done on another screen."""
        self.view.chosen = rank

    @on(RankView.Chosen)
    def _follow(self, message: RankView.Chosen) -> None:
        if message.rank != self.rank:
            self._untouched = False
            self.rank = message.rank
            # The rest follows with the next frame: a plot takes longer than the key may.
            self._show_log()

    def on_rank_table_columns_asked(self, message: RankTable.ColumnsAsked) -> None:
        """Let the columns be chosen. By its name: the table is imported once it is asked for."""
        from ddptop.tui.screens.dialogs.pickers import ColumnsDialog

        table = message.table
        columns = table.columns
        ticked = [column.key for column in columns if column.usual] if table.wanted is None else table.wanted
        shown = [column.key for column in table.shown]
        self.open_over(ColumnsDialog(columns, ticked, shown), table.choose_columns)


class RunsScreen(Transient[None]):
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
