"""Lines of cells, and the widgets that show them.

A `Row` is a list of segments; a `Page` shows finished rows, as high as they are many; a
`Roll` shows the end of a long list and draws only what is in sight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ddptop.tui.drawing.theme import Ink, ink
from ddptop.tui.drawing.units import DASH, shorten

Row = list[Segment]
T = TypeVar("T")


def width_of(row: Iterable[Segment]) -> int:
    """Return the cells a row takes."""
    return sum(cell_len(segment.text) for segment in row)


def figure(text: str, ink: Ink, hue: str = "value") -> Segment:
    """Return a number in its hue, or the dash for an unknown one in a faint hue."""
    return Segment(text, ink["faint" if text.strip() == DASH else hue])


def spread(left: Row, right: Row, width: int) -> Row:
    """Return `left` and `right` at the two ends of `width` cells; the right one gives way."""
    gap = width - width_of(left) - width_of(right)
    return [*left, Segment(" " * gap), *right] if gap >= 1 else left


def fitted(row: Row, width: int) -> Row:
    """Return a row in exactly `width` cells."""
    gap = width - width_of(row)
    if gap < 0:
        return Segment.adjust_line_length(row, width)
    return [*row, Segment(" " * gap)] if gap else row


def strip_of(row: Row, width: int) -> Strip:
    """Return a row in exactly `width` cells. A strip costs more than all that is in it: make one for a line."""
    return Strip(Segment.simplify(fitted(row, width)), width)


def packed(pieces: Iterable[Row], width: int, gap: int = 2) -> Row:
    """Return as many pieces, in order, as `width` cells take whole."""
    row: Row = []
    taken = 0
    for piece in pieces:
        cells = width_of(piece)
        if not cells:
            continue
        lead = gap if row else 0
        if taken + lead + cells > width:
            continue
        row += [Segment(" " * lead), *piece] if lead else piece
        taken += lead + cells
    return row


class Drawn(ScrollView):
    """A widget that draws its own cells in the theme's ink."""

    _base = Style.null()
    """The style of cells without one of their own. It takes long to work out: once a painting, not once a line."""

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the lines of a part."""
        self._base = self.rich_style
        return super().render_lines(crop)

    @property
    def ink(self) -> Ink:
        """Styles of the theme now in use."""
        return ink(self.app.theme)

    def grounded(self, strip: Strip, start: int, end: int) -> Strip:
        """Return a part of a line, on the widget's own ground and filled up to its end."""
        return strip.crop_extend(start, end, self._base).apply_style(self._base)


class Page(Drawn):
    """Rows given from outside; repainted only where they changed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._strips: list[Strip] = []

    def show_rows(self, rows: Sequence[Row]) -> None:
        strips = [Strip(row).simplify() for row in rows]
        if len(strips) != len(self._strips):
            self._strips = strips
            width = max((strip.cell_length for strip in strips), default=0)
            self.virtual_size = Size(width if self.allow_horizontal_scroll else 0, len(strips))
            self.refresh(layout=True)
            return
        for index, (old, new) in enumerate(zip(self._strips, strips, strict=True)):
            if old != new:
                self.refresh_line(index)
        self._strips = strips

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many lines as there are rows."""
        return len(self._strips)

    def render_line(self, y: int) -> Strip:
        index = y + self.scroll_offset.y
        strip = self._strips[index] if index < len(self._strips) else Strip.blank(0)
        return self.grounded(strip, 0, self.size.width)

    @property
    def text(self) -> str:
        return "\n".join(strip.text.rstrip() for strip in self._strips)


class Roll(Drawn, Generic[T]):
    """The end of a long list. It follows the end until it is scrolled away from there."""

    class Followed(Message):
        """The list has begun to follow its end, or has stopped to."""

    def __init__(self, draw: Callable[[T, Ink], Row], **options: Any) -> None:
        super().__init__(**options)
        self._draw = draw
        self._items: Sequence[T] = ()
        self._empty = ""
        self.following = True

    def show_items(self, items: Sequence[T], widest: int = 0, dropped: int = 0, empty: str = "") -> None:
        """Replace the list.

        Args:
            items: all lines, oldest first.
            widest: cells of the widest line, to be scrolled sideways; 0 cuts lines at the edge.
            dropped: lines that went at the front since the last call, so that the view stands still.
            empty: what to say where there are none.
        """
        self._items, self._empty = items, empty
        self.virtual_size = Size(widest, len(items))
        if self.following:
            self.scroll_end(animate=False, x_axis=False)
        elif dropped:
            self.scroll_to(y=max(0.0, self.scroll_y - dropped), animate=False)
        self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Follow the end as soon as the user is there again."""
        super().watch_scroll_y(old_value, new_value)
        at_end = new_value >= self.max_scroll_y
        if at_end != self.following and (at_end or new_value < old_value):
            self.following = at_end
            self.post_message(self.Followed())

    def on_resize(self) -> None:
        """Stay at the end in a window of another height."""
        if self.following:
            self.scroll_end(animate=False, x_axis=False)

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        width = self.size.width
        index = y + top
        if index < len(self._items):
            row = self._draw(self._items[index], self.ink)
        elif y == 0 and not self._items:
            row = [Segment(shorten(self._empty, width), self.ink["label"])]
        else:
            row = []
        return self.grounded(Strip(row), left, left + width)
