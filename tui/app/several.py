"""What the dashboard does with several runs: list them, show another, act on those not shown, launch one.

The part of the app that knows the `Fleet`; without one, none of this is offered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from textual import events, on
from textual.app import App
from textual.binding import Binding, BindingType

from ddptop.tui.control.kill import Killing
from ddptop.tui.link.fleet import Fleet, Listing, RunLine
from ddptop.tui.link.source import Control, Refused, Source
from ddptop.tui.model.frame import Frame
from ddptop.tui.screens.dialogs.kill import KillDialog
from ddptop.tui.screens.dialogs.launch import LaunchDialog
from ddptop.tui.screens.dialogs.question import ANEW, RESUME, SAVE_AND_STOP, STOP, about_restart, about_stop
from ddptop.tui.screens.run import RunScreen
from ddptop.tui.screens.runs import RunsScreen
from ddptop.tui.views.runs import RunList

SIDE: Final = 120
"""Columns from which on there is room for the list beside a run."""
SEVERAL: Final = frozenset({"runs", "launch"})
"""Actions that take a fleet."""


class FleetApp(App[None]):
    """An app that shows one run out of several."""

    FLEET_BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "runs", "Runs", id="app.runs", tooltip="List all runs; once more goes to the list, then hides it"),
        Binding("l", "launch", "Launch", id="app.launch", tooltip="Fill in and launch another run"),
    ]

    source: Source
    fleet: Fleet | None
    grace_s: float
    actor: str
    """Who acts, for the event list of what is launched."""

    if TYPE_CHECKING:
        # What the app brings along: Textual leaves no room for an abstract class.

        def killing_of(self, run: str) -> Killing | None:
            """Return the kill of a run that is under way, if there is one."""

        def newest_frame(self) -> Frame:
            """Return the run shown, as it was when it was painted last."""

        def act(self, name: str, work: Callable[[], str], run: str | None = None) -> None:
            """Do something with a run, by itself the one shown, in a thread, and tell what came of it."""

        def let_go(self) -> None:
            """Show the present again, where the user has held a view of the past."""

        def repaint(self) -> None:
            """Show the present frame at once."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer the list and the dialog where there can be several runs, and the list where it is not all there is."""
        if action == "runs" and isinstance(self.screen, RunsScreen) and len(self.screen_stack) == 1:
            return False
        return action not in SEVERAL or self.can_change_run

    @property
    def can_change_run(self) -> bool:
        """True where another run can be shown or launched."""
        return self.fleet is not None

    # The list

    @property
    def _beside(self) -> RunList | None:
        """The list beside the run, where it is there."""
        found = self.screen.query(RunList)
        return found.first() if found and isinstance(self.screen, RunScreen) else None

    async def action_runs(self) -> None:
        """Show the list, go to it, or hide it."""
        listed = self._beside
        if isinstance(self.screen, RunsScreen):
            self.pop_screen()
        elif listed is not None and self.focused is listed:
            await self._hide()
        elif listed is not None:
            listed.focus()
        else:
            await self.list_runs()

    async def list_runs(self, listing: Listing | None = None) -> None:
        """Show the list beside the run, or on a screen of its own where there is too little room."""
        if self.fleet is None:
            return
        if self.size.width < SIDE or not isinstance(self.screen, RunScreen):
            await self.push_screen(RunsScreen(self.fleet, self.newest_frame()))
            return
        listed = RunList(self.fleet, self.newest_frame(), listing, id="runs")
        await self.screen.mount(listed)
        self.screen.add_class("-listed")
        listed.focus()

    async def _hide(self) -> None:
        listed = self._beside
        if listed is not None and isinstance(self.screen, RunScreen):
            await listed.remove()
            self.screen.remove_class("-listed")
            self.screen.view.focus()

    @on(events.Resize)
    async def _fit_list(self, event: events.Resize) -> None:
        if self.is_running and len(self.screen_stack) == 1 and event.size.width < SIDE:
            await self._hide()

    @on(RunList.Left)
    def _leave_list(self) -> None:
        if isinstance(self.screen, RunScreen):
            self.screen.view.focus()
        elif len(self.screen_stack) > 1:
            self.pop_screen()

    @on(RunList.Chosen)
    async def _chosen(self, message: RunList.Chosen) -> None:
        await self.show_run(message.run)

    async def show_run(self, run: str) -> None:
        """Show another run; the list stays beside it."""
        # Also the one shown: another run may have taken its name.
        try:
            self.source.open(run)
        except Refused as problem:
            # What is left of a removed run is its frame, and that can be shown.
            if run != self.newest_frame().run:
                self.notify(str(problem), title=f"{run} is not shown", severity="error", markup=False)
                return
        self.let_go()
        with self.batch_update():
            while len(self.screen_stack) > 1:
                await self.pop_screen()
            listed = self._beside
            if isinstance(self.screen, RunScreen) and self.screen.frame.run == run:
                return
            focused = listed is not None and self.focused is listed
            if not self.screen._result_callbacks:
                # Textual puts the first screen on its stack without one, and then cannot take it off.
                self.screen._push_result_callback(self.screen, None)
            await self.switch_screen(self.get_default_screen())
            if listed is not None:
                await self.list_runs(listed.listing)
                if not focused and isinstance(self.screen, RunScreen):
                    self.screen.view.focus()
        self.repaint()

    # Runs that are not shown

    @on(RunList.Asked)
    def _asked_of(self, message: RunList.Asked) -> None:
        line = message.line
        try:
            control = self._control_of(line.run)
        except Refused as problem:
            self.notify(str(problem), severity="error", markup=False)
            return
        match message.action:
            case "kill":
                self.push_screen(KillDialog(control, line.run, 0, line.world, self.grace_s, self.killing_of(line.run)))
            case "stop":
                self.push_screen(about_stop(line), partial(self._stop_it, line, control))
            case "restart":
                question = about_restart(line.run, resumable=control.resumable())
                self.push_screen(question, partial(self._restart_it, line, control))
            case action:
                self.act(f"{action} of {line.run}", getattr(control, action), line.run)

    def _stop_it(self, line: RunLine, control: Control, answer: str | None) -> None:
        if answer in (STOP, SAVE_AND_STOP):
            self.act(f"stop of {line.run}", partial(control.stop, checkpoint=answer == SAVE_AND_STOP), line.run)

    def _restart_it(self, line: RunLine, control: Control, answer: str | None) -> None:
        if answer in (RESUME, ANEW):
            self.act(f"restart of {line.run}", partial(control.restart, resume=answer == RESUME), line.run)

    def _control_of(self, run: str) -> Control:
        """Return what acts on a run.

        Raises:
            Refused: there is no such run any more.
        """
        if run == self.newest_frame().run:
            return self.source.control
        assert self.fleet is not None
        return self.fleet.control(run)

    # Launching

    def action_launch(self) -> None:
        """Fill in another run."""
        if self.fleet is not None:
            self.push_screen(LaunchDialog(self.fleet, self.actor), self._launched)

    def _launched(self, run: str | None) -> None:
        if run is not None:
            self.notify(f"started {run}", markup=False)
            # The dialog has to be gone before its screen's place is taken.
            self.call_later(self.show_run, run)
