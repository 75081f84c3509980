"""The question before a kill, and the account of it.

What it ends is fixed when it opens: a rank by its number, never by where it stands on a screen.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from ddptop.tui.source import Refused, Source


class KillDialog(ModalScreen[None]):
    """Ends the run or one rank of it, if the user says so."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "press", "Do it", id="kill.do", tooltip="Do what the marked button says", show=False),
        Binding("escape", "cancel", "Cancel", id="kill.cancel", tooltip="Close; nothing is ended"),
        Binding("right,down", "app.focus_next", "Next", id="kill.next", tooltip="Mark the next button", show=False),
        Binding(
            "left,up",
            "app.focus_previous",
            "Previous",
            id="kill.previous",
            tooltip="Mark the button before",
            show=False,
        ),
    ]

    class Described(Message):
        """What a kill would end is known."""

        def __init__(self, rank: int | None, text: str) -> None:
            super().__init__()
            self.rank = rank
            self.text = text

    class Progressed(Message):
        """A line about a kill under way."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Ended(Message):
        """The kill is over."""

        def __init__(self, text: str, *, done: bool) -> None:
            super().__init__()
            self.text = text
            self.done = done

    def __init__(self, source: Source, run: str, rank: int, world: int, grace_s: float) -> None:
        super().__init__()
        self._source = source
        self._run = run
        self._rank = rank
        self._world = world
        self._grace_s = grace_s
        self._under_way = False
        self._victims: dict[int | None, str] = {}
        self._progress: list[str] = []

    def compose(self) -> ComposeResult:
        """Lay out the question."""
        with Vertical(id="dialog"):
            yield Static(f"End {self._run}?", id="question", markup=False)
            yield Static("", id="victims", markup=False)
            yield Static(
                f"They get TERM to end in order; what is left after {self._grace_s:g} s gets KILL.",
                id="signals",
                markup=False,
            )
            yield Static("", id="account", markup=False)
            with Horizontal(id="choices"):
                yield Button(Content(f"Kill all {self._world}" if self._world > 1 else "Kill the run"), id="all")
                yield Button(Content(f"Kill rank {self._rank} only"), id="one")
                yield Button(Content("Cancel"), id="cancel")
            yield Static("Enter does it, Escape cancels, arrows choose", id="hint", markup=False)

    def on_mount(self) -> None:
        """Mark the whole run, and find out what that is without holding up the screen."""
        self.query_one("#account").display = False
        if self._world == 1:
            self.query_one("#one").display = False
        self.query_one("#all").focus()
        self._tell_victims()
        for rank in (None, self._rank):
            self.run_worker(partial(self._describe, rank), thread=True)

    def on_descendant_focus(self) -> None:
        """Say what the button now marked would end."""
        self._tell_victims()

    def _describe(self, rank: int | None) -> None:
        try:
            text = self._source.victims(rank)
        except Refused as reason:
            text = str(reason)
        self.post_message(self.Described(rank, text))

    @on(Described)
    def _described(self, message: Described) -> None:
        self._victims[message.rank] = message.text
        self._tell_victims()

    def _tell_victims(self) -> None:
        focused = self.focused.id if self.focused is not None else "all"
        if focused == "cancel":
            text = "Nothing is ended."
        else:
            text = self._victims.get(self._rank if focused == "one" else None, "looking for its processes …")
        self.query_one("#victims", Static).update(Content(text))

    def action_press(self) -> None:
        """Do what the marked button says."""
        if self._under_way:
            return
        if self.query_one("#choices").display and isinstance(self.focused, Button):
            self.focused.press()
        elif not self.query_one("#choices").display:
            self.dismiss()

    def action_cancel(self) -> None:
        """Close, unless a kill is under way: its account is not to be lost."""
        if not self._under_way:
            self.dismiss()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if self._under_way:
            return
        if event.button.id == "cancel":
            self.dismiss()
            return
        rank = self._rank if event.button.id == "one" else None
        self._under_way = True
        self.query_one("#choices").display = False
        self.query_one("#account").display = True
        self._account("ending it …")
        self.query_one("#hint", Static).update(Content("ctrl+c leaves the dashboard; the kill goes on"))
        self.run_worker(partial(self._kill, rank), thread=True)

    def _kill(self, rank: int | None) -> None:
        try:
            text = self._source.kill(self._grace_s, rank, self._progressed)
        except Refused as reason:
            self.post_message(self.Ended(str(reason), done=False))
        else:
            self.post_message(self.Ended(text, done=True))

    def _progressed(self, text: str) -> None:
        self.post_message(self.Progressed(text))

    @on(Progressed)
    def _show_progress(self, message: Progressed) -> None:
        self._account(message.text)

    @on(Ended)
    def _show_result(self, message: Ended) -> None:
        self._under_way = False
        self._account(message.text)
        self.query_one("#account").add_class("-done" if message.done else "-refused")
        self.query_one("#hint", Static).update(Content("Enter or Escape closes"))

    def _account(self, line: str) -> None:
        self._progress.append(line)
        self.query_one("#account", Static).update(Content("\n".join(self._progress[-8:])))
