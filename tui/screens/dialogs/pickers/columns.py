"""The dialog that chooses the columns of the table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType

from ddptop.tui.screens.dialogs.pickers.picker import ListPicker
from ddptop.tui.views.table.columns import Column


class ColumnsDialog(ListPicker[frozenset[str]]):
    """A box to tick for each column. Returns the keys of the ticked columns."""

    DECIDES = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "choose", "Tick", id="columns.tick", tooltip="Show this column, or no longer"),
        Binding("u", "usual", "Usual", id="columns.usual", tooltip="Tick the usual columns"),
        Binding("escape,C,q", "close", "Done", id="columns.close", tooltip="Return to the table with these columns"),
    ]
    LOOK = "-framed"
    HINT = "{tick} ticks · {usual} the usual ones · {close} shows them"

    def __init__(self, columns: Iterable[Column], ticked: Iterable[str], shown: Iterable[str]) -> None:
        """Offer `columns`; `shown` are the keys of those that there is room for now."""
        super().__init__("columns")
        self._columns = tuple(columns)
        self._ticked = set(ticked)
        self._no_room = self._ticked - set(shown)

    def rows(self, typed: str) -> dict[str, Text]:
        return {column.key: self._row(column) for column in self._columns}

    def _row(self, column: Column) -> Text:
        box = "[✓]" if column.key in self._ticked else "[ ]"
        aside = " · no room now" if column.key in self._no_room else ""
        return Text(
            f"{box} {column.title.strip() or 'mark':<9} {column.meaning}{aside}", no_wrap=True, overflow="ellipsis"
        )

    def choose(self, key: str) -> None:
        """Tick a column, or take its tick away."""
        self._ticked ^= {key}
        self.fill(key)

    def action_usual(self) -> None:
        self._ticked = {column.key for column in self._columns if column.usual}
        self.fill(self.marked)

    def action_close(self) -> None:
        self.dismiss(frozenset(self._ticked))
