"""The line of the launch form that names the program: what is typed filters programs, or is a path that tab completes.

What is offered stands in a list over the lines below.  While it is open the arrows move its mark and enter takes the
marked program; nothing is launched before it is closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from ddptop.agent.text import clean
from ddptop.tui.drawing import units
from ddptop.tui.launch.programs import Suggestion, completed, suggestions
from ddptop.tui.screens.dialogs.field import Field

_NAME_CELLS = 24
"""Of a row, for the name; a longer one pushes its note on."""
_AROUND: Final = 8
"""Cells beside a row: the frames of the form and of the list, with what is between."""


class ProgramInput(Input):
    """A field over a list of programs that the typed text may become."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete", "Complete", id="program.complete", tooltip="Complete the program", show=False),
        Binding("enter", "take", "Take", id="program.take", tooltip="Take the marked program", show=False),
        Binding("down", "mark(1)", "Next", id="program.next", tooltip="Mark the next program", show=False),
        Binding("up", "mark(-1)", "Previous", id="program.previous", tooltip="Mark the program before", show=False),
        Binding("escape", "put_away", "Close", id="program.close", tooltip="Close the list of programs", show=False),
    ]

    class Offered(Message):
        """The list was opened or closed."""

    def __init__(self, value: str, listing: OptionList, recent: Sequence[Suggestion]) -> None:
        """Prepare the input; it fills `listing`, which whoever composes it puts below."""
        super().__init__(value, placeholder="type to filter", compact=True, select_on_focus=True)
        self._listing = listing
        self._recent = recent
        self._found: list[Suggestion] = []
        """The entries of the list; none while it is closed."""
        self._offered_for = ""
        """The text of the field when the list was made: the list of all may be opened over any text."""
        self._settled: str | None = value
        """The value for which nothing is offered: it was put there, not typed; None once there was typing."""

    @property
    def offering(self) -> bool:
        """Say whether the list is open."""
        return bool(self._found)

    def settle(self, value: str) -> None:
        """Put a whole program there, and close the list."""
        self._settled = value
        self.value = value
        self.cursor_position = len(value)
        self.action_put_away()

    def offer(self, typed: str) -> None:
        """Open the list with what this text may become; close it where that is nothing, or the text itself alone."""
        found = suggestions(typed, self._recent)
        if [each.text for each in found] == [typed]:
            found = []
        opened = bool(found) != self.offering
        self._found, self._offered_for = found, self.value
        self._listing.clear_options()
        self._listing.add_options(
            [Option(_row(each, self.app.size.width - _AROUND), id=str(number)) for number, each in enumerate(found)]
        )
        self._listing.highlighted = 0 if found else None
        self._listing.display = bool(found)
        # A layout that comes before the list's own turn is remembered, and a request made meanwhile does not count: the
        # list would stay as high as it was then.
        self.call_after_refresh(self._listing.refresh, layout=True)
        if opened:
            self.post_message(self.Offered())

    def _catch_up(self) -> None:
        """Offer what the present text may become: a key may overtake the word that it was typed."""
        if self.offering and self._offered_for != self.value:
            self._settled = None
            self.offer(self.value)

    def take(self, number: int) -> None:
        """Take a program of the list; of a folder or a package, offer what is in it."""
        chosen = self._found[number]
        if chosen.whole:
            self.settle(chosen.text)
        else:
            self._become(chosen.text)

    def _become(self, text: str) -> None:
        """Take a text as if it had been typed."""
        self.value = text
        self.cursor_position = len(text)
        # Also where the text was there before, which changes nothing.
        self.offer(text)

    def on_key(self, event: events.Key) -> None:
        """Open the list of all at a space in an untouched field."""
        # No program begins with a space: as in a choice, it opens the list of all.
        if event.character == " " and self.selected_text == self.value and not self.offering:
            event.stop()
            event.prevent_default()
            self.offer("")

    def on_click(self) -> None:
        """Open the list of all, or close it."""
        self.action_put_away() if self.offering else self.offer("")

    def on_blur(self) -> None:
        """Close the list with the field."""
        self.action_put_away()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        caught_up = self.offering and event.value == self._offered_for
        if event.value != self._settled and event.value == self.value and not caught_up:
            self._settled = None
            self.offer(event.value)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the keys to the form while the list is closed."""
        return self.offering if action in ("mark", "put_away") else super().check_action(action, parameters)

    def action_mark(self, by: int) -> None:
        """Mark a program further on; the first follows on the last."""
        self._catch_up()
        if self._found:
            self._listing.highlighted = ((self._listing.highlighted or 0) + by) % len(self._found)

    async def action_take(self) -> None:
        """Take the marked program; without a list, submit what is typed."""
        self._catch_up()
        if self.offering:
            self.take(self._listing.highlighted or 0)
        else:
            await self.action_submit()

    def action_put_away(self) -> None:
        """Close the list; what is typed stays."""
        if self.offering:
            self._found = []
            self._listing.display = False
            self.post_message(self.Offered())

    def action_complete(self) -> None:
        """Complete the text as far as it is clear, else take the marked program; go on where all is complete."""
        self._catch_up()
        whole = completed(self.value, self._found or suggestions(self.value, self._recent))
        if not self.offering and (not self.value or whole == self.value == self._settled):
            self.screen.focus_next()
        elif whole != self.value:
            self._become(whole)
        elif self.offering:
            self.take(self._listing.highlighted or 0)
        else:
            self.offer(self.value)
            if not self.offering:
                self.screen.focus_next()


class ProgramField(Field):
    """The program that a run is launched with."""

    def __init__(self, key: str, title: str, help: str, value: str, recent: Sequence[Suggestion]) -> None:
        """Prepare the field.

        Args:
            key: by which the form knows it.
            title: what stands before it.
            help: what it is for.
            value: the program at first.
            recent: programs that were launched, the last one first.
        """
        super().__init__(key, title, help, value)
        self._recent = recent

    def compose(self) -> ComposeResult:
        """Title, what is typed with the list below it, and a note."""
        yield Label(Content(self.title), classes="title")
        listing = OptionList(markup=False, compact=True, classes="programs")
        listing.can_focus = False
        listing.display = False
        with Vertical(classes="offering"):
            yield ProgramInput(self.value, listing, self._recent)
            yield listing
        yield Label(Content("▼"), classes="arrow")
        yield Label(Content(self.help), classes="note")

    def on_resize(self) -> None:
        """Give the list, which stands over the form, all of the width."""
        self.query_one(".programs").styles.width = self.size.width

    @property
    def offering(self) -> bool:
        """Say whether the list of programs is open."""
        return self.query_one(ProgramInput).offering

    def fill(self, value: str) -> None:
        """Put a program into it."""
        self.query_one(ProgramInput).settle(value)

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.query_one(ProgramInput).take(event.option_index)

    @on(events.Click, ".arrow")
    def _arrow(self) -> None:
        self.enter()
        self.query_one(ProgramInput).on_click()


def _row(suggestion: Suggestion, width: int) -> Text:
    """Return a row of the list; of a path that is too long for it the end is seen, which tells it from the others."""
    name = units.shorten_middle(clean(suggestion.text, 4096), width)
    row = Text(f"{name:<{_NAME_CELLS}}", no_wrap=True, overflow="ellipsis")
    row.append(f"  {clean(suggestion.note, 200)}", "dim")
    return row
