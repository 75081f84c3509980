"""The menu of signals: typing filters it, Enter sends."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from ddptop.tui.control import signals
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.screens.dialogs.dialog import Dialog


class SignalMenu(Dialog["int | None"]):
    """Lets the user choose a signal; returns its number, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "Send", id="signals.send", tooltip="Send the marked signal", priority=True),
        Binding("escape", "cancel", "Cancel", id="signals.cancel", tooltip="Close; nothing is sent"),
        Binding("down", "move(1)", "Next", id="signals.next", tooltip="Mark the next signal", show=False),
        Binding("up", "move(-1)", "Previous", id="signals.previous", tooltip="Mark the signal before", show=False),
    ]

    def __init__(self, whom: str, world: int, timeout_s: float | None = None) -> None:
        super().__init__()
        self._whom = whom
        self._world = world
        self._timeout_s = timeout_s

    def compose(self) -> ComposeResult:
        """Lay out filter, list and warning."""
        with Vertical(id="dialog"):
            yield Static(f"Send a signal to {self._whom}", id="question", markup=False)
            yield Input(placeholder="type to filter: a name or a number", id="filter")
            yield OptionList(id="list")
            yield Static("", id="warning", markup=False)
            keys = keys_of(self)
            around = f"{keys['signals.previous']} {keys['signals.next']}"
            hint = f"{keys['signals.send']} sends it, {keys['signals.cancel']} cancels, {around} choose"
            yield Static(Content(hint), id="hint")

    def on_mount(self) -> None:
        """Show all signals; keys go to the filter, arrows move in the list."""
        self.query_one(OptionList).can_focus = False
        self._fill("")
        self.query_one(Input).focus()

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        self._fill(event.value)

    def _fill(self, wanted: str) -> None:
        needle = wanted.strip().upper()
        found = [n for n in signals.every() if needle in signals.name(n) or str(n).startswith(needle)]
        listing = self.query_one(OptionList)
        listing.clear_options()
        listing.add_options([Option(_line(number), id=str(number)) for number in found])
        listing.highlighted = 0 if found else None
        if not found:
            self.query_one("#warning", Static).update(Content("no signal of that name or number"))

    @on(OptionList.OptionHighlighted)
    def _marked(self, event: OptionList.OptionHighlighted) -> None:
        text = signals.warning(int(event.option_id or 0), self._world, self._timeout_s, keys_of(self)["run.pause"])
        self.query_one("#warning", Static).update(Content(text or ""))

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(int(event.option_id or 0))

    def action_move(self, by: int) -> None:
        """Mark another signal."""
        listing = self.query_one(OptionList)
        if by > 0:
            listing.action_cursor_down()
        else:
            listing.action_cursor_up()

    def action_choose(self) -> None:
        """Send the marked signal."""
        listing = self.query_one(OptionList)
        if listing.highlighted is not None:
            self.dismiss(int(listing.get_option_at_index(listing.highlighted).id or 0))

    def action_cancel(self) -> None:
        """Close."""
        self.dismiss(None)


def _line(number: int) -> Text:
    return Text(
        f"{number:>3}  {signals.name(number):<12}  {signals.describe(number)}", no_wrap=True, overflow="ellipsis"
    )
