"""The menu of signals: typing filters it, Enter sends."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import OptionList, Static

from ddptop.tui.control import signals
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.screens.dialogs.pickers.picker import ListPicker


class SignalMenu(ListPicker[int]):
    """Lets the user choose a signal; returns its number, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "Send", id="signals.send", tooltip="Send the marked signal", priority=True),
        Binding("escape", "close", "Cancel", id="signals.cancel", tooltip="Close; nothing is sent"),
        Binding("down", "move(1)", "Next", id="signals.next", tooltip="Mark the next signal", show=False),
        Binding("up", "move(-1)", "Previous", id="signals.previous", tooltip="Mark the signal before", show=False),
    ]
    HINT = "type or {previous} {next} to choose, {send} sends it, {cancel} cancels"
    PRESELECTS = False
    FILTER = "type to filter: a name or a number"

    def __init__(self, whom: str, world: int, timeout_s: float | None = None) -> None:
        super().__init__(f"Send a signal to {whom}")
        self._world = world
        self._timeout_s = timeout_s

    def contents(self) -> ComposeResult:
        """Yield field and list, and a place for a warning."""
        yield from super().contents()
        yield Static("", id="warning")

    def rows(self, typed: str) -> dict[str, Text]:
        """Return the signals whose name holds, or whose number begins with, what is typed; the usual ones first."""
        needle = typed.strip().upper()
        found = (n for n in signals.every() if needle in signals.name(n) or str(n).startswith(needle))
        return {str(number): _row(number) for number in found}

    def fill(self, mark: str | None = None, typed: str = "") -> None:
        """Offer the signals that fit, and say so where none does."""
        super().fill(mark, typed)
        if not self.query_one(OptionList).option_count:
            self._warn("no signal of that name or number")
        elif self.marked is None:
            self._warn("")

    @on(OptionList.OptionHighlighted)
    def _marked(self, event: OptionList.OptionHighlighted) -> None:
        pause = keys_of(self)["run.pause"]
        self._warn(signals.warning(int(event.option_id or 0), self._world, self._timeout_s, pause) or "")

    def _warn(self, text: str) -> None:
        self.query_one("#warning", Static).update(Content(text))

    def choose(self, key: str) -> None:
        self.dismiss(int(key))


def _row(number: int) -> Text:
    return Text(
        f"{number:>3}  {signals.name(number):<12}  {signals.describe(number)}", no_wrap=True, overflow="ellipsis"
    )
