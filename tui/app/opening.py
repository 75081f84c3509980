"""The screens that open over the run: logs, events, stacks, report, plot, one rank; and the way back from them.

Each is imported when it opens: the screen of the run is there the sooner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from textual.app import App

from ddptop.tui.app.shown import ShownRun
from ddptop.tui.link.source import Source
from ddptop.tui.model.frame import can_be_reported
from ddptop.tui.screens.live import LiveScreen
from ddptop.tui.screens.plot import PlottedScreen
from ddptop.tui.screens.run import RunScreen

if TYPE_CHECKING:
    from ddptop.tui.screens.lists import ListScreen


class Opening:
    """Has the app open a screen over that of the run; where no run is on the screen (`live` is None), none."""

    def __init__(
        self, app: App[None], shown: ShownRun, source: Callable[[], Source], repaint: Callable[[], None]
    ) -> None:
        """Open nothing yet; `source` returns that of the run shown, and `repaint` shows the present frame."""
        self._app = app
        self._shown = shown
        self._source = source
        self._repaint = repaint

    def offers(self, action: str, live: LiveScreen | None) -> bool:
        """Say whether `logs`, `events`, `stacks` or `report` can be opened over a screen: none over itself."""
        if live is not None and live.opened_by == action:
            return False
        return action != "report" or (live is not None and can_be_reported(live.frame))

    def logs(self, live: LiveScreen | None) -> None:
        """Open what the chosen rank printed."""
        from ddptop.tui.screens.lists import LogScreen

        if live is not None:
            self._show_list(LogScreen(self._shown.frame(), live.rank))

    def events(self, live: LiveScreen | None) -> None:
        """Open what has happened in the run."""
        from ddptop.tui.screens.lists import EventScreen

        if live is not None:
            self._show_list(EventScreen(self._shown.frame(), live.rank))

    def stacks(self, live: LiveScreen | None) -> None:
        """Open where each rank stands: first the one whose screen or log this is."""
        from ddptop.tui.screens.stacks import StacksScreen

        if live is not None:
            first = live.rank if live.is_of_rank else None
            self._show_list(StacksScreen(self._shown.frame(), live.rank, lambda: self._source().inspector, first))

    def report(self, live: LiveScreen | None) -> None:
        """Open why the run has failed."""
        from ddptop.tui.model.diagnosis.report import whole
        from ddptop.tui.screens.report import ReportScreen

        if live is not None:
            source = self._source()
            self._show_list(ReportScreen(self._shown.frame(), live.rank, lambda: whole(source.report())))

    def _show_list(self, screen: ListScreen[Any]) -> None:
        """Show one of logs, events, stacks and report in the place of another: `back` leads to where they came from."""
        from ddptop.tui.screens.lists import ListScreen

        if isinstance(top := self._app.screen, ListScreen):
            top.dismiss(top.rank)
        self._app.push_screen(screen, self._returned)

    def plot(self, live: LiveScreen | None) -> None:
        """Open the plot on the whole screen."""
        from ddptop.tui.screens.plot import PlotScreen

        if isinstance(live, PlottedScreen):
            screen = PlotScreen(self._shown.frame(), live.rank, live.look, alone=live.alone)
            self._app.push_screen(screen, self._returned)

    def rank(self, rank: int) -> None:
        """Open the screen of one rank."""
        from ddptop.tui.screens.rank import RankScreen

        self._app.push_screen(RankScreen(self._shown.frame(), rank), self._returned)

    def _returned(self, rank: int | None) -> None:
        for screen in self._app.screen_stack:
            if rank is not None and isinstance(screen, RunScreen):
                screen.choose(rank)
        self._repaint()
