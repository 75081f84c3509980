"""The dashboard: takes frames from a source, hands them to the screens, and has done what keys name.

Every action `app.…` of a binding begins here. The app draws nothing, knows no socket, and ends without touching
the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.color import ColorSystem
from textual import on
from textual.app import App, ScreenStackError
from textual.binding import Binding, BindingType
from textual.events import AppBlur, DeliveryComplete, DeliveryFailed, Key, Resize
from textual.filter import LineFilter, Monochrome, NoColor
from textual.reactive import var
from textual.timer import Timer
from textual.worker import WorkerFailed

from ddptop.agent.client.frame import Frame
from ddptop.agent.client.host.settings import Settings, path
from ddptop.agent.client.watch import LONG_POLL_S
from ddptop.agent.wire.frames import ENDED
from ddptop.tui.app.acting import Acted, Acting, Prepared
from ddptop.tui.app.keys import counting, keymap
from ddptop.tui.app.keys.hint import HELP, FirstHint
from ddptop.tui.app.keys.palette import Palette, RunCommands
from ddptop.tui.app.several import SeveralRuns
from ddptop.tui.app.shown import ShownRun
from ddptop.tui.control.actions import RULES, Offers
from ddptop.tui.drawing.lines import AsciiFilter
from ddptop.tui.drawing.theme import DARK, LIGHT, THEMES
from ddptop.tui.link.fleet import Fleet, RunLine
from ddptop.tui.link.source import ReadOnly, Source
from ddptop.tui.model.sentences import can_be_joined, can_be_reported
from ddptop.tui.screens.live import LiveScreen
from ddptop.tui.screens.plot import PlottedScreen
from ddptop.tui.screens.run import RunScreen, RunsScreen
from ddptop.tui.views.ranks import RankView
from ddptop.tui.views.runs import RunList

if TYPE_CHECKING:
    from ddptop.tui.model.diagnosis.report import ReportLine
    from ddptop.tui.screens.dialogs.kill import KillDialog
    from ddptop.tui.screens.lists import ListScreen

POLL_HZ: Final = 20
PAINT_HZ: Final = 4
TERMINAL_S: Final = 1.0
"""Seconds between two looks whether the terminal is still there."""
DEFAULT: Final = Settings()
THEME_NAMES: Final = {"dark": DARK.name, "light": LIGHT.name}
_COLOR_SYSTEMS: Final = {
    "16": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR,
}  # fmt: skip


class DdptopApp(App[None]):
    """The dashboard of one run, and of others in turn."""

    CSS_PATH = "ddptop.tcss"
    TITLE = "ddptop"
    COMMANDS: ClassVar = {RunCommands}
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-middle"), (160, "-wide")]  # noqa: RUF012 - no ClassVar in Textual
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (18, "-short"), (32, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "Help", id="app.help", key_display="?", tooltip="Show keys, signs and colors"),
        Binding("t", "light", "Light", id="app.theme", tooltip="Change between dark and light colors", show=False),
        Binding("r", "runs", "Runs", id="app.runs", tooltip="List all runs; once more goes to the list, then hides it"),
        Binding("l", "launch", "Launch", id="app.launch", tooltip="Launch another run from a form"),
        Binding(
            "ctrl+p",
            "command_palette",
            "Palette",
            id="app.palette",
            tooltip="Find an action, or a rank by its number",
            show=False,
            priority=True,
        ),
        Binding(
            "S",
            "snapshot",
            "Snapshot",
            id="app.picture",
            tooltip="Write a snapshot of the screen into an SVG file",
            show=False,
        ),
        Binding(
            "ctrl+z",
            "suspend",
            "Suspend",
            id="app.suspend",
            tooltip="Suspend the dashboard; `fg` in the shell brings it back",
            show=False,
            priority=True,
        ),
        Binding("q", "leave", "Leave", id="app.leave", tooltip="Leave the dashboard; the run goes on"),
        Binding(
            "ctrl+c",
            "leave",
            "Leave",
            id="app.leave_now",
            tooltip="Leave the dashboard; the run goes on",
            show=False,
            priority=True,
        ),
        *counting.KEYS,
    ]

    frame: var[Frame | None] = var(None)
    """The frame now shown, set at the frame rate. A `reactive` would repaint the whole screen each time."""

    def __init__(
        self,
        source: Source,
        clock: Callable[[], float] = time.time,
        settings: Settings = DEFAULT,
        fleet: Fleet | None = None,
        hint: FirstHint | None = None,
        *,
        read_only: bool = False,
        listed: bool = False,
    ) -> None:
        """Prepare to show a run; with a `fleet` others in its place, which are `listed` from the start if so asked."""
        super().__init__()
        self.source: Source = ReadOnly(source) if read_only else source
        self.read_only = read_only
        """The run can be looked at only; no key that acts on it is offered."""
        self.shown = ShownRun(self.source, clock)
        self.acting = Acting(self, self.shown)
        self.several = None if fleet is None or read_only else SeveralRuns(self, self.shown, self.acting, fleet)
        """None where no other run can be shown or launched."""
        self.settings = settings
        self._hint = hint
        """None where the user needs none."""
        self.failure: Exception | None = None
        """The error of its own that ended the dashboard, if there was one."""
        self._listed = listed
        self._first: Frame | None = None
        """The frame with which the first screen begins: what it lacks is awaited from then on."""
        self.between: Timer
        """The clock of the polls between frames."""
        self._turn = 0
        """Frames whose time has come."""
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = THEME_NAMES[settings.look.theme]
        self.stylesheet.set_variables(self.get_css_variables())
        self._set_colors(settings.look.color)
        self.ascii_only = settings.look.glyphs == "ascii"
        self.set_keymap(keymap.complete(type(self), settings.keymap))
        self.key_names: Mapping[str, str] = keymap.Names(type(self), settings.keymap, ascii_only=self.ascii_only)
        """By the id of an action, its key as the user reads it."""

    def _set_colors(self, choice: str) -> None:
        if choice in _COLOR_SYSTEMS:
            # Rich takes it only when the console is made, which Textual does by itself.
            self.console._color_system = _COLOR_SYSTEMS[choice]
        self._colorless = choice == "none" or self.no_color or self.console.color_system is None
        self.set_class(self._colorless, "-colorless")

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Take away what the terminal must not get."""
        # Textual's own way without color leaves grays, and fails on cells without a style.
        filters = [each for each in super().get_line_filters() if not isinstance(each, Monochrome)]
        if self._colorless:
            filters.append(NoColor())
        if self.ascii_only:
            filters.append(AsciiFilter())
        return filters

    def get_key_display(self, binding: Binding) -> str:
        """Return a key as the footer names it."""
        return keymap.shown(binding.key, ascii_only=self.ascii_only)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Give the style sheet its semantic names under any theme."""
        return dict(DARK.variables)

    def get_default_screen(self) -> RunScreen | RunsScreen:
        """Begin with the run, with what is known of it by now; where none is chosen yet, with the list of all."""
        self.source.poll()
        frame = self.shown.newest()
        self._first = frame
        if self.several is not None and not frame.run:
            return RunsScreen(self.several.fleet, frame)
        screen = RunScreen(frame, self.settings.look.view)
        # Textual adds these after the first layout: the screen would be laid out and painted twice.
        for extent, classes in zip(self.size, (self.HORIZONTAL_BREAKPOINTS, self.VERTICAL_BREAKPOINTS), strict=True):
            screen.add_class(max(each for each in classes if each[0] <= extent)[1])
        return screen

    def refresh_css(self, animate: bool = True) -> None:
        """Apply a theme, but not the first one while there is no screen yet: the style sheet begins with it."""
        # Textual would parse the whole sheet for it, style nothing, and parse it again for the first screen.
        if self.screen_stack:
            super().refresh_css(animate)

    def on_load(self) -> None:
        """Take the signals before the terminal is changed, so that none finds it changed and unguarded."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Outside the main thread (as under some test runners) a loop takes no signals.
            with contextlib.suppress(ValueError, RuntimeError):
                asyncio.get_running_loop().add_signal_handler(number, self._end_by, number)

    def on_mount(self) -> None:
        """Start the clocks."""
        self.between = self.set_interval(1 / POLL_HZ, self._take_in)
        self.set_interval(1 / PAINT_HZ, self.next_frame)
        if not self.is_headless and sys.stdin is not None and sys.stdin.isatty():
            terminal = select.poll()
            terminal.register(sys.stdin, 0)
            self.set_interval(TERMINAL_S, partial(self._leave_with, terminal))
        if self._listed and self.several is not None:
            # In the app's own turn, as a key that asks for it.
            self.call_after_refresh(self.call_later, self.several.show_list)

    def on_unmount(self) -> None:
        """Give the signals back."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(ValueError, RuntimeError):
                asyncio.get_running_loop().remove_signal_handler(number)

    def on_app_blur(self, event: AppBlur) -> None:
        """Go on while another program has the keyboard: the footer would lose its keys, in a browser from the start."""
        event.prevent_default()

    def _leave_with(self, terminal: select.poll) -> None:
        """End with the terminal: SIGHUP goes only to those whose controlling terminal it is."""
        # Before the queue of what is to be written to it is full: Textual would wait for room in it without end.
        if terminal.poll(0):
            self._end_by(signal.SIGHUP)

    def _end_by(self, number: int) -> None:
        self.exit(return_code=128 + number)

    # Messages and frames: a poll comes with each frame. Between two frames there are more only while more messages come
    # than the turn of a frame takes in, or while the history that is looked at is not whole.

    def next_frame(self) -> None:
        """Take in new messages and show them."""
        self._turn += 1
        if not self._has_more():
            # Behind a dialog the run goes on once a second: Textual paints the whole screen for any change there.
            behind = any(screen.is_modal for screen in self.screen_stack[-1:])
            if self._turn % PAINT_HZ == 0 or not behind:
                self.repaint()
            return
        self.between.resume()
        # A key that has come meanwhile is done before.
        self.call_later(self.repaint)

    def _take_in(self) -> None:
        """Take in what has come between two frames: only while there is more than a frame's turn takes in."""
        waited = self._waits
        more = self._has_more()
        if waited and not self._waits:
            # The history is whole, and is shown without waiting for the clock.
            self.repaint()
        elif not more and self.frame is not None:
            self.between.pause()

    def _has_more(self) -> bool:
        """Take in new messages, and return whether more of them may be there already."""
        began = time.monotonic()
        self.source.poll()
        return self._waits or time.monotonic() - began > LONG_POLL_S

    @property
    def _waits(self) -> bool:
        """True while the history that is looked at is not whole."""
        frame = self.frame or self._first
        history = None if frame is None else frame.history
        return history is not None and not history.complete

    def repaint(self) -> None:
        """Show the present frame at once."""
        # Once it is being left, the clocks tick on while the screens lose their widgets one by one.
        if self.is_running and self.return_code is None:
            self.frame = self.shown.frame()
            self.acting.tell_kill()

    def watch_frame(self, frame: Frame | None) -> None:
        """Pass the frame to every screen that can be seen: the topmost, and what is under a dialog."""
        if frame is None:
            return
        for screen in reversed(self.screen_stack):
            if isinstance(screen, RunScreen) and self._hint is not None:
                screen.hint = self._hint.text(frame, self.key_names)
            if isinstance(screen, LiveScreen):
                screen.take(frame)
                self.source.watch(screen.in_sight, screen.logs_in_sight)
            if not screen.is_modal:
                break
            if screen is not self.screen:
                # Textual keeps what a dialog between two screens has shown of the lower one.
                screen.refresh()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer what the run's state allows, and other runs where there can be any."""
        # While the app ends there is no screen any more.
        top = self.screen_stack[-1] if self.screen_stack else None
        live = self._live
        match action:
            case "act":
                if live is None or self.read_only or (parameters[0] == "join" and not can_be_joined(live.frame)):
                    return False
                return Offers.of(live.frame).has(str(parameters[0]))
            case "diagnose" if live is not None and not self.check_action("act", parameters):
                # The newest one is shown of a run that has ended, or has to be resumed first.
                helps = "" if self.read_only else Offers.of(live.frame).remedy(str(parameters[0]))
                return (live.frame.state in ENDED or helps == "resume") and live.opened_by != parameters[0]
            case "logs" | "events" | "stacks" | "report":
                if live is not None and live.opened_by == action:
                    return False
                return action != "report" or (live is not None and can_be_reported(live.frame))
            case "number":
                return isinstance(top, LiveScreen) and bool(top.check_action(str(parameters[0]), parameters[1:]))
            case "runs" if isinstance(top, RunsScreen) and len(self.screen_stack) == 1:
                return False
            case "runs" | "launch":
                return self.several is not None
        return True

    @property
    def _live(self) -> LiveScreen | None:
        """The screen of the run that keys act on: the topmost one; a dialog or the palette may be over it."""
        return next((screen for screen in reversed(self.screen_stack) if isinstance(screen, LiveScreen)), None)

    # The run shown

    def action_act(self, action: str) -> None:
        """Do an action of `control.actions` with the run shown."""
        if (live := self._live) is not None:
            # Whatever is done, the number that was typed before is over.
            steps = live.take_count()
            self.acting.begin(action, self.source.control, self.shown.newest(), rank=live.rank, steps=steps)

    def on_key(self, event: Key) -> None:
        """Say why nothing happens, where no action of the key is offered now."""
        owner: type[RunList | LiveScreen]
        run: RunLine | Frame | None
        if not self.screen_stack:
            # It ends.
            return
        if isinstance(self.focused, RunList):
            owner, run = RunList, self.focused.line
        elif isinstance(self.screen, LiveScreen):
            owner, run = LiveScreen, self.screen.frame
        else:
            return
        names = keymap.meant(owner, event.key, self.settings.keymap)
        action = names[0].partition(".")[2] if names else ""
        if run is not None and action in RULES and event.key not in self.screen.active_bindings:
            self.acting.explain(action, run, names[0], read_only=self.read_only)

    async def action_number(self, part: str, *digit: int) -> None:
        """Do what a key of `counting` does on the screen."""
        await self.run_action(f"{part}({', '.join(map(str, digit))})", self.screen)

    @on(Acted)
    def _acted(self, message: Acted) -> None:
        self.acting.tell(message)
        self.repaint()

    @on(Prepared)
    def _prepared(self, message: Prepared) -> None:
        self.acting.put(message)

    def on_kill_dialog_begun(self, message: KillDialog.Begun) -> None:
        """Take note of a kill. By its name: the dialog is imported once it is asked for."""
        self.acting.look_after(message)

    def action_hold(self) -> None:
        """Hold the view, or resume it."""
        self.shown.hold()
        self.repaint()

    # Screens over the run: each is imported when it opens, so that the screen of the run is there the sooner

    def action_logs(self) -> None:
        """Show what the chosen rank printed."""
        from ddptop.tui.screens.lists import LogScreen

        if (live := self._live) is not None:
            self._show_list(LogScreen(self.shown.frame(), live.rank))

    def action_events(self) -> None:
        """Show what has happened in the run."""
        from ddptop.tui.screens.lists import EventScreen

        if (live := self._live) is not None:
            self._show_list(EventScreen(self.shown.frame(), live.rank))

    def action_stacks(self) -> None:
        """Show where each rank stands: first the one whose screen or log this is."""
        from ddptop.tui.screens.stacks import StacksScreen

        if (live := self._live) is not None:
            first = live.rank if live.is_of_rank else None
            self._show_list(StacksScreen(self.shown.frame(), live.rank, lambda: self.source.inspector, first))

    def action_report(self) -> None:
        """Show why the run has failed."""
        from ddptop.tui.model.diagnosis.report import whole
        from ddptop.tui.screens.report import ReportScreen

        if (live := self._live) is not None:
            self._show_list(ReportScreen(self.shown.frame(), live.rank, lambda: whole(self.source.report())))

    def _show_list(self, screen: ListScreen[Any]) -> None:
        """Show a list in the place of another one: `back` leads to where both came from."""
        from ddptop.tui.screens.lists import ListScreen

        if isinstance(top := self.screen, ListScreen):
            top.dismiss(top.rank)
        self.push_screen(screen, self._returned)

    def action_diagnose(self, kind: str) -> None:
        """Diagnose the run, and show what that says; where it cannot be now, show the newest diagnosis of this kind."""
        live, show = self._live, partial(self._show_diagnosis, kind)
        if live is None or not self.check_action("act", (kind,)):
            show()
            return
        live.take_count()
        self.acting.begin(kind, self.source.control, self.shown.newest(), then=show)

    def _show_diagnosis(self, kind: str) -> None:
        from ddptop.tui.model.diagnosis import kept
        from ddptop.tui.screens.diagnosis import DiagnosisScreen

        if (live := self._live) is not None:
            source, frame = self.source, self.shown.frame()

            def make() -> list[ReportLine]:
                return kept.newest(kind, source.diagnoses(kind), frame.world)

            self._show_list(DiagnosisScreen(frame, live.rank, kind, make))

    def action_plot(self) -> None:
        """Show the plot on the whole screen."""
        from ddptop.tui.screens.plot import PlotScreen

        if isinstance(live := self._live, PlottedScreen):
            screen = PlotScreen(self.shown.frame(), live.rank, live.look, alone=live.alone)
            self.push_screen(screen, self._returned)

    @on(RankView.Opened)
    def _show_rank(self, message: RankView.Opened) -> None:
        from ddptop.tui.screens.rank import RankScreen

        self.push_screen(RankScreen(self.shown.frame(), message.rank), self._returned)

    def _returned(self, rank: int | None) -> None:
        for screen in self.screen_stack:
            if rank is not None and isinstance(screen, RunScreen):
                screen.choose(rank)
        self.repaint()

    @on(RunScreen.Viewed)
    def _view_chosen(self, message: RunScreen.Viewed) -> None:
        if self._hint is not None:
            self._hint.use(f"view.{message.name}")

    # Other runs

    async def action_runs(self) -> None:
        """Show the list of runs, go to it, or hide it."""
        if self.several is not None:
            await self.several.turn_to_list()

    def action_launch(self) -> None:
        """Fill in another run."""
        if self.several is not None:
            self.several.launch()

    @on(Resize)
    async def _fit_list(self, event: Resize) -> None:
        if self.several is not None:
            await self.several.fit_list(event.size.width)

    @on(RunList.Left)
    def _leave_list(self) -> None:
        if self.several is not None:
            self.several.leave_list()

    @on(RunList.Chosen)
    async def _show_run(self, message: RunList.Chosen) -> None:
        if self.several is None:
            return
        try:
            await self.several.show(message.run)
        except ScreenStackError:
            if self.return_code is None:
                raise
            # Left in the midst of it: the screens are gone.
        self.repaint()

    @on(RunList.Paired)
    def _show_both(self, message: RunList.Paired) -> None:
        if self.several is not None:
            self.several.compare(message.first, message.second)

    @on(RunList.Asked)
    def _act_on_listed(self, message: RunList.Asked) -> None:
        if self.several is not None:
            self.several.act(message)

    # The app itself

    def action_help(self) -> None:
        """Show the keys."""
        from ddptop.tui.screens.help import HelpScreen

        if self._hint is not None:
            self._hint.use(HELP)
        inner = self.screen.focused or self.screen
        chain = [type(node) for node in inner.ancestors_with_self]
        here, rest = keymap.help_tables(
            type(self),
            self.settings.keymap,
            chain,
            counts=isinstance(self.screen, LiveScreen) and self.screen.can_count,
            ascii_only=self.ascii_only,
        )
        self.push_screen(HelpScreen(here, rest))

    def action_command_palette(self) -> None:
        """Let an action be found by its words."""
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette())

    def action_light(self) -> None:
        """Change between dark and light."""
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name
        name = next(name for name, theme in THEME_NAMES.items() if theme == self.theme)
        if name != self.settings.look.theme:
            text = f'until you leave; theme = "{name}" in [look] of {path()} keeps them'
            self.notify(text, title=f"{name} colors", markup=False)

    def action_suspend(self) -> None:
        """Give the terminal back to the shell until it continues us."""
        # Only a shell that gives each job a process group can: none is above us behind ssh, in a script, or in a
        # container, where the parent may be outside, and has the number 0.
        if (parent := os.getppid()) and os.getsid(parent) == os.getsid(0) and os.getpgid(parent) != os.getpgrp():
            self.action_suspend_process()

    def action_leave(self) -> None:
        """Leave; the run goes on."""
        self.exit(return_code=0)

    def action_snapshot(self) -> None:
        """Write what is seen into a file, or have the browser keep it where the dashboard is in one."""
        run = self.shown.newest().run or "runs"
        name = f"ddptop-{run}-{time.strftime('%Y%m%d-%H%M%S')}.svg"
        snapshot = io.StringIO(self.export_screenshot(title=f"ddptop {run}"))
        self.deliver_text(snapshot, save_directory=Path.cwd(), save_filename=name, mime_type="image/svg+xml")

    @on(DeliveryComplete)
    def _delivered(self, event: DeliveryComplete) -> None:
        self.notify("the browser has it" if event.path is None else str(event.path), title="snapshot", markup=False)

    @on(DeliveryFailed)
    def _not_delivered(self, event: DeliveryFailed) -> None:
        reason = getattr(event.exception, "strerror", None) or str(event.exception)
        self.notify(f"no snapshot: {reason}", severity="error", markup=False)

    # Errors of its own

    def _handle_exception(self, error: Exception) -> None:
        # Textual would fill the terminal with a traceback; the first error is kept for `app.program`,
        # which says it in one line. Textual offers no public hook for this.
        if isinstance(error, WorkerFailed):
            error = error.error if isinstance(error.error, Exception) else error
        if self.failure is None:
            self.failure = error
        super()._handle_exception(error)
        self._exit_renderables.clear()
