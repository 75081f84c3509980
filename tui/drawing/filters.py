"""The last step before the terminal: signs that it cannot show are replaced."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from ddptop.tui.drawing.glyphs import ascii_of


class AsciiFilter(LineFilter):
    """Replace every sign that is not ASCII."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the line in as many cells."""
        return [
            segment if segment.text.isascii() else Segment(ascii_of(segment.text), segment.style, segment.control)
            for segment in segments
        ]
