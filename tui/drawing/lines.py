"""Lines of cells, and the widgets that show them.

A `Row` is a list of segments; a `Page` shows finished rows, as high as they are many; a
`ScrolledLines` shows the end of a long list and draws only what is in sight.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import ANSIToTruecolor, LineFilter
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ddptop.tui.drawing.glyphs import ascii_of
from ddptop.tui.drawing.theme import Ink, ink
from ddptop.tui.drawing.units import DASH, shorten

Row = list[Segment]
T = TypeVar("T")


def width_of(row: Iterable[Segment]) -> int:
    """Return the cells a row takes."""
    # Nearly all text is ASCII, and this is done for thousands of segments in a frame.
    texts = [segment[0] for segment in row]
    together = "".join(texts)
    if together.isascii():
        return len(together)
    return sum([len(text) if text.isascii() else cell_len(text) for text in texts])


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

    _based: Style | None = None
    _grounds: dict[Style | None, Style]
    """By style of a segment, that style on the widget's own ground."""
    _rendered: tuple[object, list[Strip]] | None = None
    """The part that was asked for last, and its lines; None where something has changed since."""

    @property
    def base(self) -> Style:
        """The style of cells without one of their own. It takes long to work out: once, until the styles change."""
        if self._based is None:
            self._based, self._grounds = self.rich_style, {}
        return self._based

    def notify_style_update(self) -> None:
        """Draw all again, in the colors of another theme."""
        self._based = self._rendered = None
        super().notify_style_update()

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Drawn:
        """Draw again, all of it where no part is named."""
        self._rendered = None
        if not regions:
            self._based = None
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the lines of a part; Textual asks for them whenever anything on the screen has changed."""
        part = crop, self.size, self.scroll_offset
        if self._rendered is None or self._rendered[0] != part:
            self._rendered = part, super().render_lines(crop)
        return self._rendered[1]

    @property
    def line_width(self) -> int:
        """Cells of a line, without those of a scrollbar beside it."""
        return self.size.width - self.scrollbar_size_vertical

    def refresh_numbered(self, lines: Iterable[int]) -> None:
        """Draw these of all lines again; to refresh each by itself takes as long as to draw it."""
        width, top = self.line_width, self.scroll_offset.y
        if regions := [Region(0, begin - top, width, end - begin) for begin, end in _stretches(lines)]:
            self.refresh(*regions)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Leave out the one for the colors of the terminal's own palette: ink and style sheet have none."""
        return [each for each in super().get_line_filters() if not isinstance(each, ANSIToTruecolor)]

    @property
    def ink(self) -> Ink:
        """Styles of the theme now in use."""
        return ink(self.app.theme)

    def grounded(self, strip: Strip, start: int, end: int) -> Strip:
        """Return a part of a line, on the widget's own ground and filled up to its end."""
        return strip.crop_extend(start, end, self.base).apply_style(self.base)

    def grounded_row(self, row: Iterable[Segment], width: int) -> Strip:
        """Return a row that takes `width` cells, on the widget's own ground and filled up to its edge.

        The same as `grounded` in one pass: a line through many panels has a hundred segments.
        """
        base, whole = self.base, self.line_width
        grounds = self._grounds
        segments: list[Segment] = []
        together: list[str] = []
        before: Style | None = None
        for text, style, _ in row:
            if together and style is not before:
                segments.append(Segment("".join(together), grounds.get(before) or self._on_ground(before)))
                together = []
            together.append(text)
            before = style
        if together:
            segments.append(Segment("".join(together), grounds.get(before) or self._on_ground(before)))
        if width < whole:
            segments.append(Segment(" " * (whole - width), base))
        strip = Strip(segments, max(width, whole))
        return strip if width <= whole else strip.crop(0, whole)

    def _on_ground(self, style: Style | None) -> Style:
        ground = self._grounds[style] = self.base if style is None else self.base + style
        return ground


def _stretches(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first number of each stretch of consecutive ones, and the one after its last."""
    begin = end = -1
    for number in sorted(numbers):
        if number != end:
            if end > begin:
                yield begin, end
            begin = number
        end = number + 1
    if end > begin:
        yield begin, end


class Page(Drawn):
    """Rows given from outside; repainted only where they changed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._strips: list[Strip] = []
        self._rows: list[Row] = []
        """The rows of which the strips were made."""

    def show_rows(self, rows: Sequence[Row]) -> None:
        same = len(rows) == len(self._rows)
        strips = [
            self._strips[index] if same and row == self._rows[index] else Strip(row).simplify()
            for index, row in enumerate(rows)
        ]
        old, self._rows, self._strips = self._strips, [list(row) for row in rows], strips
        if len(strips) != len(old):
            width = max((strip.cell_length for strip in strips), default=0)
            self.virtual_size = Size(width if self.allow_horizontal_scroll else 0, len(strips))
            self.refresh(layout=True)
            return
        self.refresh_numbered(index for index, (was, now) in enumerate(zip(old, strips, strict=True)) if was != now)

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


class ScrolledLines(Drawn, Generic[T]):
    """The end of a long list. It follows the end until it is scrolled away from there."""

    class Followed(Message):
        """The list has begun to follow its end, or has stopped to, or shows something else of what there is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._items: Sequence[T] = ()
        self._empty = ""
        self.following = True

    @abstractmethod
    def row_of(self, item: T, ink: Ink) -> Row:
        """Return an item of the list as a line."""

    def show_items(self, items: Sequence[T], widest: int = 0, dropped: int = 0, empty: str = "") -> None:
        """Replace the list.

        Args:
            items: all lines, oldest first.
            widest: cells of the widest line, to be scrolled sideways; 0 where nothing is.
            dropped: lines that went at the front since the last call, so that the view stands still.
            empty: what to say where there are none.
        """
        self._items, self._empty = items, empty
        self.virtual_size = Size(widest, len(items))
        if self.following:
            # By force, because before the list is laid out anew it has no bar by which it could be scrolled.
            self.scroll_end(animate=False, x_axis=False, force=True)
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
        """Stay at the end at another height."""
        if self.following:
            self.scroll_end(animate=False, x_axis=False)

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        width = self.size.width
        index = y + top
        if index < len(self._items):
            row = self.row_of(self._items[index], self.ink)
        elif y == 0 and not self._items:
            row = [Segment(shorten(self._empty, width), self.ink["label"])]
        else:
            row = []
        strip = Strip(row)
        if strip.cell_length > (edge := left + self.line_width):
            strip = Strip([*strip.crop(0, edge - 1), Segment("…", self.ink["label"])])
        return self.grounded(strip, left, left + width)


class AsciiFilter(LineFilter):
    """Replace every sign that is not ASCII."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the line in as many cells."""
        return [
            segment if segment.text.isascii() else Segment(ascii_of(segment.text), segment.style, segment.control)
            for segment in segments
        ]
