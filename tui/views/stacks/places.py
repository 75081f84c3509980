"""The stacks of all ranks as one list: ranks at the same place together, with a filter over the places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.scroll_view import ScrollView

from ddptop.tui.drawing.filtered import Filtered
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.drawing.lines import Row, ScrolledLines
from ddptop.tui.drawing.theme import Ink
from ddptop.tui.model.diagnosis.stacks import Place
from ddptop.tui.views.stacks.lines import PlacedLine, placed_lines, stack_row


class StackList(Filtered, ScrolledLines[PlacedLine], can_focus=True):
    """Where all ranks stand; only the places that match the filter."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Search", id="stacks.filter", key_display="/",
                tooltip="Show only ranks in whose stacks these words are"),
        Binding("escape", "clear", "All places", id="stacks.clear", tooltip="Show the stacks of all ranks again"),
    ]  # fmt: skip
    begins = "stacks.filter"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.following = False
        self._places: list[list[PlacedLine]] = []
        self._empty_text = ""
        self.count = 0
        """Places that are shown."""

    def row_of(self, item: PlacedLine, ink: Ink) -> Row:
        return stack_row(item, ink)

    @property
    def places(self) -> int:
        """Places that there are."""
        return len(self._places)

    def show(self, found: Sequence[Place], empty: str) -> None:
        """Show these places from the top; `empty` is said where there are none."""
        self._places, self._empty_text = placed_lines(found), empty
        self.scroll_to(0, 0, animate=False)
        self.lay_out()

    def lay_out(self) -> None:
        """Make the list anew of the places that match."""
        words = self.words
        shown = [lines for lines in self._places if all(any(_has(line, word) for line in lines) for word in words)]
        self.count = len(shown)
        items: list[PlacedLine] = []
        for lines in shown:
            items += [PlacedLine(), *lines] if items else lines
        clear = keys_of(self)["stacks.clear"]
        empty = f"in no stack are these words; {clear} shows all again" if words and self._places else self._empty_text
        self.show_items(items, max((line.width for line in items), default=0), empty=empty)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Scroll; this list has no end that it could follow."""
        ScrollView.watch_scroll_y(self, old_value, new_value)

    def renew(self) -> None:
        """Show what matches."""
        self.lay_out()
        self.post_message(self.Followed())
        super().renew()


def _has(placed: PlacedLine, word: str) -> bool:
    line = placed.line
    return line is not None and (word in line.text.lower() or word in line.source.lower())
