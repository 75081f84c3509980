"""The canvas of a plot: the library's, but for what takes most of the time of a drawing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from math import floor
from typing import Any, Final

from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual_hires_canvas import Canvas, HiResMode
from textual_hires_canvas.canvas import FloatScalar
from textual_hires_canvas.hires import hires_sizes, pixels

_BRAILLE: Final = HiResMode.BRAILLE
_ACROSS, _DOWN = hires_sizes[_BRAILLE].width, hires_sizes[_BRAILLE].height
"""Dots of a cell."""
_SIGNS: Final = {
    sum(1 << index for index, dot in enumerate(dots) if dot): pixels[_BRAILLE][dots] or " "
    for dots in product((0, 1), repeat=_ACROSS * _DOWN)
}
"""By the dots of a cell, as bits from its upper left one on line by line, the sign that has them."""


class PlotCanvas(Canvas):
    """A canvas that works out its style once a painting, and the dots of a cell once a line."""

    _painted_in: Style | None = None
    _redraws = False
    """True while it is drawn anew: what has to be painted is known at the end."""

    @contextmanager
    def redrawn(self) -> Iterator[None]:
        """Paint, of what is drawn in the block, the lines that look different after it.

        The library empties the canvas for each drawing and asks for all of it to be painted at each cell.
        """
        before = self._looks()
        self._redraws = True
        try:
            yield
        finally:
            self._redraws = False
        after = self._looks()
        if len(before) != len(after):
            self.refresh()
        elif changed := [y for y, (was, now) in enumerate(zip(before, after, strict=True)) if was != now]:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def _looks(self) -> list[tuple[list[str], list[str]]]:
        """Return the signs and the styles of each line."""
        return [(signs.copy(), styles.copy()) for signs, styles in zip(self._buffer, self._styles, strict=True)]

    def refresh(self, *regions: Region, **options: Any) -> PlotCanvas:
        """Ask for a painting, but not while all is drawn anew."""
        return self if self._redraws and not options else super().refresh(*regions, **options)

    @property
    def rich_style(self) -> Style:
        """The style of cells without one of their own."""
        return super().rich_style if self._painted_in is None else self._painted_in

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the lines of a part."""
        self._painted_in = super().rich_style
        try:
            return super().render_lines(crop)
        finally:
            self._painted_in = None

    def draw_hires_lines(
        self,
        coordinates: Iterable[tuple[FloatScalar, FloatScalar, FloatScalar, FloatScalar]],
        hires_mode: HiResMode | None = None,
        style: str = "white",
    ) -> None:
        """Draw lines in dots; the library makes an array for each cell of them."""
        if hires_mode is not _BRAILLE:
            super().draw_hires_lines(coordinates, hires_mode, style)
            return
        cells: dict[tuple[int, int], int] = {}
        for begin_x, begin_y, end_x, end_y in coordinates:
            seen = self._clip_line_cohen_sutherland(float(begin_x), float(begin_y), float(end_x), float(end_y))
            if seen is None:
                continue
            x0, y0, x1, y1 = seen
            dots = self._get_line_coordinates(
                floor(x0 * _ACROSS), floor(y0 * _DOWN), floor(x1 * _ACROSS), floor(y1 * _DOWN)
            )
            for x, y in dots:
                cell = y // _DOWN, x // _ACROSS
                cells[cell] = cells.get(cell, 0) | 1 << (y % _DOWN * _ACROSS + x % _ACROSS)
        width, height = self._canvas_region.size
        for (row, column), drawn in cells.items():
            if 0 <= row < height and 0 <= column < width:
                self._buffer[row][column] = _SIGNS[drawn]
                self._styles[row][column] = style
        self.refresh()
