"""Several runs: list them, show another, act on those not shown, launch one.

The part of the dashboard that knows the `Fleet`; without one, none of this is offered.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from textual.app import App

from ddptop.agent.client.acting.actor import who
from ddptop.tui.app.acting import Acting
from ddptop.tui.app.shown import ShownRun
from ddptop.tui.link.fleet import Fleet, Listing
from ddptop.tui.link.source import Refused
from ddptop.tui.screens.run import RunScreen, RunsScreen
from ddptop.tui.views.runs import RunList

if TYPE_CHECKING:
    from ddptop.agent.client.comparison.measured import Measured
    from ddptop.tui.launch.form import Draft

SIDE: Final = 120
"""Columns from which on there is room for the list beside a run."""


class SeveralRuns:
    """Has the app show one run out of several."""

    def __init__(self, app: App[None], shown: ShownRun, acting: Acting, fleet: Fleet) -> None:
        self.fleet = fleet
        self._app = app
        self._shown = shown
        self._acting = acting
        self._closed: Draft | None = None
        """The launch form as it was closed last; None where it was launched."""

    # The list

    @property
    def _beside(self) -> tuple[RunScreen, RunList] | None:
        """The run's screen and the list in it, where it is there."""
        screen = self._app.screen
        # One that is being hidden is there for a while.
        found = [each for each in screen.query(RunList) if each.display]
        return (screen, found[0]) if found and isinstance(screen, RunScreen) else None

    async def turn_to_list(self) -> None:
        """Show the list, go to it, or hide it."""
        beside = self._beside
        if isinstance(self._app.screen, RunsScreen):
            self._app.pop_screen()
        elif beside is None:
            await self.show_list()
        elif self._app.focused is beside[1]:
            await self._hide()
        else:
            beside[1].focus()

    async def show_list(self, listing: Listing | None = None) -> None:
        """Show the list, unless it is there: beside the run, or on a screen of its own where there is no room."""
        screen, frame = self._app.screen, self._shown.newest()
        if self._beside is not None or isinstance(screen, RunsScreen):
            return
        if self._app.size.width < SIDE or not isinstance(screen, RunScreen):
            await self._app.push_screen(RunsScreen(self.fleet, frame))
            return
        listed = RunList(self.fleet, frame, listing)
        await screen.mount(listed)
        screen.add_class("-listed")
        listed.focus()

    async def _hide(self) -> None:
        if self._beside is not None:
            screen, listed = self._beside
            await listed.remove()
            screen.remove_class("-listed")
            screen.view.focus()

    async def fit_list(self, width: int) -> None:
        """Hide the list where the terminal has become too narrow for it."""
        if self._app.is_running and len(self._app.screen_stack) == 1 and width < SIDE:
            await self._hide()

    def leave_list(self) -> None:
        """Return to the ranks."""
        screen = self._app.screen
        if isinstance(screen, RunScreen):
            screen.view.focus()
        elif len(self._app.screen_stack) > 1:
            self._app.pop_screen()

    async def show(self, run: str) -> None:
        """Show another run; the list stays beside it."""
        app, shown = self._app, self._shown
        # Also the one shown: another run may have taken its name.
        try:
            shown.source.open(run)
        except Refused as problem:
            # What is left of a removed run is its frame, and that can be shown.
            if run != shown.newest().run:
                app.notify(str(problem), title=f"{run} is not shown", severity="error", markup=False)
                return
        shown.let_go()
        with app.batch_update():
            while len(app.screen_stack) > 1:
                await app.pop_screen()
            if isinstance(app.screen, RunScreen) and app.screen.frame.run == run:
                return
            listed = None if self._beside is None else self._beside[1]
            focused = listed is not None and app.focused is listed
            if not app.screen._result_callbacks:
                # Textual puts the first screen on its stack without one, and then cannot take it off.
                app.screen._push_result_callback(app.screen, None)
            await app.switch_screen(app.get_default_screen())
            if listed is not None:
                await self.show_list(listed.listing)
                if not focused and isinstance(app.screen, RunScreen):
                    app.screen.view.focus()

    # Runs that are not shown

    def act(self, asked: RunList.Asked) -> None:
        """Do what is asked with a run of the list."""
        line = asked.line
        if asked.action == "remove":
            self._acting.remove(line, partial(self.fleet.remove, line))
            return
        try:
            shown = line.run_id == self._shown.newest().run_id
            control = self._shown.source.control if shown else self.fleet.control(line.run)
        except Refused as problem:
            self._app.notify(str(problem), severity="error", markup=False)
            return
        self._acting.begin(asked.action, control, line, listed=True)

    def compare(self, first: str, second: str) -> None:
        """Show two runs beside each other."""
        from ddptop.tui.screens.comparison import ComparisonScreen

        width = self._app.size.width

        def make() -> tuple[list[Measured], list[str]]:
            from ddptop.agent.client import runs
            from ddptop.agent.client.comparison import compared, reading
            from ddptop.tui.model import comparison

            read = [reading.read(runs.named(name), who("dashboard")) for name in (first, second)]
            return read, comparison.lines(compared.compare(*read, anyway=True), width - 4)

        self._app.push_screen(ComparisonScreen((first, second), make))

    # Launching

    def launch(self) -> None:
        """Fill in another run."""
        from ddptop.tui.screens.dialogs.launch import LaunchDialog

        dialog = LaunchDialog(self.fleet, who("dashboard"), self._closed)
        self._app.push_screen(dialog, partial(self._left, dialog.draft))

    def _left(self, draft: Draft, run: str | None) -> None:
        """Keep what was filled in: what is stored of it is without faults and secrets."""
        self._closed = draft if run is None else None
        if run is not None:
            # The dialog has to be gone before its screen's place is taken.
            self._app.post_message(RunList.Chosen(run))
