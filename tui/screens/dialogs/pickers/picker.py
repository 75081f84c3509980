"""The base of the dialogs in which one entry of several is chosen.

A picker says what it offers and what a choice means.  The box, the field that filters, the mark and how the arrows
move it are here; the keys' ids and tooltips are each picker's own.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ScreenResultType
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from ddptop.tui.screens.dialogs.dialog import Dialog


class Picker(Dialog[ScreenResultType]):
    """A box with a title, something to choose from, and a hint. Returns the choice, or None."""

    LOOK: ClassVar[str] = ""
    """The class of the box in the style sheet; in one that is `-framed`, title and hint stand in the border."""
    HINT: ClassVar[str]
    """The line that tells what the keys do, as `Dialog.hint` takes it."""

    def __init__(self, heading: str) -> None:
        super().__init__()
        self._heading = heading

    @abstractmethod
    def contents(self) -> ComposeResult:
        """Yield the widgets between title and hint."""

    def compose(self) -> ComposeResult:
        heading, hint = Content(self._heading), self.hint(self.HINT)
        with Vertical(id="dialog", classes=self.LOOK) as box:
            if self.LOOK == "-framed":
                box.border_title, box.border_subtitle = heading, hint
                yield from self.contents()
            else:
                yield Static(heading, id="question")
                yield from self.contents()
                yield Static(hint, id="hint")

    def action_close(self) -> None:
        self.dismiss(None)


class ListPicker(Picker[ScreenResultType]):
    """Offers rows in a list, of which one is marked; what is typed filters them, where there is a field for it."""

    FILTER: ClassVar[str | None] = None
    """The text of the empty field; None for no field."""
    PRESELECTS: ClassVar[bool] = True
    """False where a row is marked only once something was typed or the mark was moved: a choice has an effect."""

    @abstractmethod
    def rows(self, typed: str) -> dict[str, Text]:
        """Return the rows that fit what is typed, each by a key of its own."""

    @abstractmethod
    def choose(self, key: str) -> None:
        """Do what the choice of a row means."""

    def contents(self) -> ComposeResult:
        """Yield the field, where there is one, and the list."""
        if self.FILTER is not None:
            yield Input(placeholder=self.FILTER, id="filter", compact=True)
        listing = OptionList(id="list", markup=False)
        # Beside a field it has no keys: those that move the mark are the dialog's own.
        listing.can_focus = self.FILTER is None
        yield listing

    def on_mount(self) -> None:
        """Fill the list, and give the keys to the field, where there is one."""
        self.query("#filter, #list").first().focus()
        self.fill(self.marked)

    @property
    def marked(self) -> str | None:
        """The key of the marked row, None where there is no row."""
        option = self.query_one(OptionList).highlighted_option
        return None if option is None else option.id

    def fill(self, mark: str | None = None, typed: str = "") -> None:
        """Offer the rows that there are now, and mark the one of this key, else the first."""
        listing = self.query_one(OptionList)
        rows = self.rows(typed)
        if [option.id for option in listing.options] == list(rows):
            # In place, so that the list stays where it was scrolled to.
            for key, row in rows.items():
                listing.replace_option_prompt(key, row)
        else:
            listing.clear_options()
            listing.add_options([Option(row, id=key) for key, row in rows.items()])
        unmarked = not rows or (mark is None and not typed and not self.PRESELECTS)
        listing.highlighted = None if unmarked else list(rows).index(mark) if mark in rows else 0

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        self.fill(typed=event.value)

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        self.choose(event.option_id or "")

    def action_move(self, by: int) -> None:
        """Mark a row further on; the first follows on the last."""
        listing = self.query_one(OptionList)
        if listing.option_count:
            # Before the first row where none is marked; above that is the last one.
            now = listing.highlighted if listing.highlighted is not None else min(-by, 0)
            listing.highlighted = (now + by) % listing.option_count

    def action_choose(self) -> None:
        if self.ignores_enter():
            return
        if (key := self.marked) is not None:
            self.choose(key)
