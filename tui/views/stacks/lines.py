"""The lines of stacks as cells: for the list on the screen, and for the verb, which has no use for Textual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.segment import Segment

from ddptop.tui.drawing import units
from ddptop.tui.model.diagnosis import stacks
from ddptop.tui.model.diagnosis.stacks import Line, Place

if TYPE_CHECKING:
    from ddptop.tui.drawing.lines import Row
    from ddptop.tui.drawing.theme import Ink

MOST_COLUMN: Final = 48
"""The cell at the latest in which the texts of the source begin, one below the other."""
_HUES: Final = {
    stacks.RANKS: "bold value", stacks.CALL: "brand", stacks.NOTE: "level-warning", stacks.THREAD: "bold label",
    stacks.HERE: "bold value", stacks.USER: "value", stacks.LIBRARY: "faint", stacks.FOLDED: "faint",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlacedLine:
    """A line of a place, as wide as the others of it need; without one, the gap between two places."""

    line: Line | None = None
    column: int = 0
    """The cell in which the text of the source begins."""
    culprit: bool = False

    @property
    def width(self) -> int:
        """Cells that it takes."""
        if self.line is None:
            return 0
        return cell_len("".join(segment.text for segment in stack_row(self, None)))


def stack_row(placed: PlacedLine, ink: Ink | None) -> Row:
    """Draw one line; without ink, to be measured."""
    line = placed.line
    if line is None:
        return []

    def text(text: str, hue: str) -> Segment:
        return Segment(text, None if ink is None else ink[hue])

    if line.kind == stacks.RANKS:
        mark = "✗ " if placed.culprit else "● "
        hue = "bold level-error" if placed.culprit else "bold value"
        return [text(mark + line.text, hue), text(f"  {line.source}" if line.source else "", "label")]
    lead = "▶ " if line.kind == stacks.HERE else "  "
    # A library looks different without color, too.
    body = f"({line.text})" if line.kind == stacks.LIBRARY else line.text
    row = [text(f"  {lead}", "bold rank-slow"), text(body, _HUES[line.kind])]
    if line.source:
        gap = max(2, placed.column - cell_len(body) - 4)
        row += [text(" " * gap, "faint"), text(line.source, "history")]
    return row


def placed_lines(found: Sequence[Place]) -> list[list[PlacedLine]]:
    """Return the lines of each place, to be drawn."""
    return [_placed(place, lines) for place, lines in zip(found, stacks.lines_of(found), strict=True)]


def _placed(place: Place, lines: Sequence[Line]) -> list[PlacedLine]:
    widths = [cell_len(line.text) for line in lines if line.source and line.kind != stacks.RANKS]
    column = 4 + 2 + min(MOST_COLUMN, max(widths, default=0))
    return [PlacedLine(line, column, place.culprit) for line in lines]


def text_lines(found: Sequence[Place], width: int | None) -> list[str]:
    """Return the places as lines of text, cut to so many cells where there is a `width`."""
    lines: list[str] = []
    for place in placed_lines(found):
        lines += [""] if lines else []
        lines += ["".join(segment.text for segment in stack_row(line, None)).rstrip() for line in place]
    return lines if width is None else [units.shorten(line, width) for line in lines]
