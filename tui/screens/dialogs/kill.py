"""The question before a kill or a signal, its progress, and its outcome.

What it kills is fixed when it opens: a rank by its number, a process by its identity, never by
where they stand on a screen.  The dialog may be closed while a kill goes on, and opened on it again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Static

from ddptop.agent.client.acting.kill import Aim, Consent, Killing
from ddptop.agent.client.acting.membership import ProcessLine
from ddptop.agent.client.frame import Frame
from ddptop.tui.control import signals
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.link.source import Control, Refused
from ddptop.tui.screens.dialogs.dialog import Dialog
from ddptop.tui.screens.dialogs.pickers import ProcessMenu, SignalMenu
from ddptop.tui.screens.dialogs.question import BUTTONS_HINT, button_keys

_LOOK_S = 0.1
"""The progress of a kill is looked at so often."""
_LINES = 8
"""Lines of it that are shown, the newest."""


class KillDialog(Dialog[None]):
    """Kills the run, one rank or one process of it, or sends a signal, if the user says so."""

    BINDINGS: ClassVar[list[BindingType]] = button_keys(
        "kill",
        Binding("s", "signal", "Signal", id="kill.signal", tooltip="Choose a signal to send instead", show=False),
        Binding(
            "escape,q",
            "cancel",
            "Close",
            id="kill.cancel",
            tooltip="Cancel what has not begun; else close, and the kill goes on",
        ),
    )

    class Described(Message):
        """The processes that a kill would end are known, as one line of text."""

        def __init__(self, aim: Aim, text: str) -> None:
            super().__init__()
            self.aim = aim
            self.text = text

    class Begun(Message):
        """A kill or a signal is under way."""

        def __init__(self, killing: Killing, run: str) -> None:
            super().__init__()
            self.killing = killing
            self.run = run

    def __init__(
        self, control: Control, run: str, rank: int, world: int, grace_s: float, killing: Killing | None = None
    ) -> None:
        super().__init__()
        self._control = control
        self._run = run
        self._rank = rank
        self._world = world
        self._grace_s = grace_s
        self._process: ProcessLine | None = None
        self._killing = killing
        """The kill or signal that is under way or just over."""
        self._victims: dict[Aim, str] = {}
        self._countdown = ""
        self._timeout_s: float | None = None
        """The timeout of collectives; None where another run is shown."""
        self._shown: tuple[str, list[str], Content] | None = None
        """The title, the lines and the hint as they were shown last."""

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(f"Kill {self._run}?", id="question", markup=False)
            yield Static("", id="victims", markup=False)
            yield Static(
                f"Sends SIGTERM, then SIGKILL after {self._grace_s:g} s.",
                id="signals",
                markup=False,
            )
            yield Static("", id="account", markup=False)
            with Horizontal(id="choices"):
                yield Button(Content("Cancel"), id="cancel")
                yield Button(Content("Kill all ranks" if self._world > 1 else "Kill the run"), id="all")
                yield Button(Content(f"Kill rank {self._rank}"), id="one")
                yield Button(Content("Process…"), id="process")
            yield Static(self.hint(BUTTONS_HINT + ", {signal} sends a signal"), id="hint")

    def on_mount(self) -> None:
        """Mark the button that cancels, and find out what a kill ends without holding up the screen."""
        self.query_one("#account").display = False
        if self._world == 1:
            self.query_one("#one").display = False
        self.query_one("#cancel").focus()
        self.watch(self.app, "frame", self._take, init=False)
        if self._killing is not None:
            self._follow(self._killing)
            return
        self._tell_victims()
        for aim in (None, self._rank):
            self.run_worker(partial(self._describe, aim), thread=True)

    def on_descendant_focus(self) -> None:
        """Say what the button now marked would end."""
        self._tell_victims()

    def _describe(self, aim: Aim) -> None:
        try:
            text = self._control.victims(aim)
        except Refused as reason:
            text = str(reason)
        self.post_message(self.Described(aim, text))

    @on(Described)
    def _described(self, message: Described) -> None:
        self._victims[message.aim] = message.text
        self._tell_victims()

    def _tell_victims(self) -> None:
        focused = self.focused.id if self.focused is not None else "cancel"
        if focused == "process" and self._process is None:
            text = f"{keys_of(self)['kill.do']} lists torchrun, ranks, data workers and helpers: choose one of them."
        else:
            text = self._victims.get(self._aim(), "looking for its processes …")
        self.query_one("#victims", Static).update(Content(text))

    def _aim(self) -> Aim:
        """Return what the marked button would kill; beside the button that cancels it is the whole run."""
        if self._process is not None:
            return self._process.process
        return self._rank if self.focused is not None and self.focused.id == "one" else None

    def action_press(self) -> None:
        if self._killing is not None:
            self.dismiss()
        elif isinstance(self.focused, Button):
            self.focused.press()

    def action_cancel(self) -> None:
        """Cancel what has not begun; close otherwise: what is under way goes on."""
        killing = self._killing
        if killing is None or killing.cancelled or not killing.cancel():
            self.dismiss()
        self._show_account()

    def action_signal(self) -> None:
        """Choose a signal for what the marked button stands for."""
        if self._killing is not None:
            return
        aim = self._aim()
        menu = SignalMenu(self._named(aim), self._world, self._timeout_s)
        self.open_over(menu, partial(self._send, aim))

    def _named(self, aim: Aim) -> str:
        """Return what is killed or gets a signal, as the user reads it."""
        if aim is None:
            return self._run
        process = self._process
        part = f"rank {aim}" if process is None else f"{process.role} {process.process.pid}"
        return f"{part} of {self._run}"

    def _send(self, aim: Aim, number: int | None) -> None:
        if number is not None:
            work = partial(self._signal, number, aim)
            self._begin(Killing(work, self._named(aim), signals.name(number)))

    def _signal(self, number: int, aim: Aim, tell: Callable[[str], None], consent: Consent) -> str:
        return self._control.signal(number, aim, consent)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if self._killing is not None:
            return
        if event.button.id == "cancel":
            self.dismiss()
        elif event.button.id == "process" and self._process is None:
            self.open_over(ProcessMenu(self._control, self._run), self._narrow)
        else:
            aim = self._aim() if event.button.id != "all" else None
            self._begin(Killing(partial(self._control.kill, self._grace_s, aim), self._named(aim)))

    def _narrow(self, chosen: ProcessLine | None) -> None:
        """Ask about one process from now on."""
        if chosen is None:
            return
        self._process = chosen
        pid = chosen.process.pid
        self.query_one("#question", Static).update(Content(f"Kill {self._named(chosen.process)}?"))
        for name in ("#all", "#one"):
            self.query_one(name).display = False
        button = self.query_one("#process", Button)
        button.label = Content(f"Kill process {pid}")
        self.query_one("#cancel").focus()
        self.run_worker(partial(self._describe, chosen.process), thread=True)

    def _begin(self, killing: Killing) -> None:
        killing.start()
        self.post_message(self.Begun(killing, self._run))
        self._follow(killing)

    def _follow(self, killing: Killing) -> None:
        self._killing = killing
        self.set_interval(_LOOK_S, self._show_account)
        # What would be done is no longer true.
        for name in ("#choices", "#victims", "#signals"):
            self.query_one(name).display = False
        self.query_one("#account").display = True
        self._show_account()

    def _take(self, frame: Frame | None) -> None:
        mine = frame if frame is not None and frame.run == self._run else None
        self._countdown = "" if mine is None else mine.ending
        self._timeout_s = None if mine is None else mine.timeout_s
        self._show_account()

    def _show_account(self) -> None:
        killing = self._killing
        if killing is None:
            return
        lines = killing.lines[-_LINES:] or ["under way …"]
        if not killing.over and self._countdown:
            lines = [*lines, self._countdown]
        title, hint = killing.title, self._hint(killing)
        if self._shown == (shown := (title, lines, hint)):
            return
        self._shown = shown
        self.query_one("#question", Static).update(Content(title))
        account = self.query_one("#account", Static)
        account.update(Content("\n".join(lines)))
        if killing.over:
            account.add_class("-done" if killing.done else "-refused")
        self.query_one("#hint", Static).update(hint)

    def _hint(self, killing: Killing) -> Content:
        if killing.over:
            return self.hint("{do} or {cancel} closes")
        if killing.cancelled:
            return self.hint("cancelled unless it has begun by now; {do} or {cancel} closes")
        if not killing.begun:
            return self.hint("{cancel} cancels; {do} closes, and it goes on")
        again = f"{keys_of(self)['run.kill']} shows it again"
        return self.hint("{do} or {cancel} closes; it goes on, ") + again
