"""The dialog that chooses the columns of the table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList

from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.screens.dialogs.dialog import Dialog
from ddptop.tui.views.table.columns import Column


class ColumnsDialog(Dialog[frozenset[str]]):
    """A box to tick for each column. Returns the keys of those ticked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "tick", "Tick", id="columns.tick", tooltip="Show this column, or no longer"),
        Binding("u", "usual", "Usual", id="columns.usual", tooltip="Tick the usual columns"),
        Binding("escape,C,q", "close", "Done", id="columns.close", tooltip="Return to the table with these columns"),
    ]

    def __init__(self, columns: Iterable[Column], ticked: Iterable[str], shown: Iterable[str]) -> None:
        """Offer `columns`; `shown` are the keys of those that there is room for now."""
        super().__init__()
        self._columns = tuple(columns)
        self._ticked = set(ticked)
        self._no_room = self._ticked - set(shown)

    def compose(self) -> ComposeResult:
        """One list, and what to do with it."""
        with Vertical(id="dialog", classes="-columns"):
            yield OptionList(*(self._line(column) for column in self._columns), markup=False)

    def on_mount(self) -> None:
        """Begin with the first box."""
        dialog = self.query_one(Vertical)
        dialog.border_title = "columns"
        keys = keys_of(self)
        usual, close = keys["columns.usual"], keys["columns.close"]
        dialog.border_subtitle = Content(f"{keys['columns.tick']} ticks · {usual} the usual ones · {close} shows them")
        self.query_one(OptionList).focus()

    def _line(self, column: Column) -> Text:
        box = "[✓]" if column.key in self._ticked else "[ ]"
        aside = " · no room now" if column.key in self._no_room else ""
        return Text(
            f"{box} {column.title.strip() or 'mark':<9} {column.meaning}{aside}", no_wrap=True, overflow="ellipsis"
        )

    def _redraw(self) -> None:
        boxes = self.query_one(OptionList)
        for index, column in enumerate(self._columns):
            boxes.replace_option_prompt_at_index(index, self._line(column))

    @on(OptionList.OptionSelected)
    def _selected(self) -> None:
        self.action_tick()

    def action_tick(self) -> None:
        """Tick the box at the cursor, or take its tick away."""
        index = self.query_one(OptionList).highlighted
        if index is not None:
            self._ticked ^= {self._columns[index].key}
            self._redraw()

    def action_usual(self) -> None:
        """Tick the usual columns and no others."""
        self._ticked = {column.key for column in self._columns if column.usual}
        self._redraw()

    def action_close(self) -> None:
        """Return what is ticked."""
        self.dismiss(frozenset(self._ticked))
