"""A painting of the screen takes the lines that changed, of the widgets that are seen there.

Textual asks every widget for all of its lines whenever one line of the screen changes, and cuts them all where any
widget begins or ends. Four times a second that took as long as all that the dashboard draws.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from itertools import pairwise
from typing import NamedTuple

from rich.console import Console

# Textual has no public way to paint less.
from textual._compositor import Compositor, CompositorUpdate
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget


class Part(NamedTuple):
    """A stretch of a line of the screen in which one widget is seen."""

    begin: int
    end: int
    widget: Widget
    seen: Region
    """The part of the widget that is not cut off, on the screen."""
    crop: Region
    """The same part, as the widget counts its cells."""


class Painting(CompositorUpdate):
    """Strips, each with the line and the column where it begins."""

    def __init__(self, strips: list[tuple[int, int, Strip]]) -> None:
        self.strips = strips

    def render_segments(self, console: Console) -> str:
        """Return what the terminal gets."""
        return "".join([f"\x1b[{y + 1};{x + 1}H{strip.render(console)}" for y, x, strip in self.strips])


class LineCompositor(Compositor):
    """A compositor that paints changes line by line; the whole screen it paints as Textual does."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[Widget] = set()
        """Widgets that have something new since the last painting."""
        self._arranged: dict[Widget, tuple[Region, Region]] = {}
        """The arrangement that `_parts` is of."""
        self._parts: dict[int, list[Part]] = {}
        """By line, from left to right, what is seen in it."""

    def update_widgets(self, widgets: set[Widget]) -> None:
        """Take note of widgets that have changed."""
        super().update_widgets(widgets)
        self._told |= widgets

    def render_full_update(self, simplify: bool = False) -> CompositorUpdate:  # type: ignore[override]  # of which it is one
        """Return the whole screen."""
        self._told.clear()
        return super().render_full_update(simplify)

    def render_partial_update(self) -> Painting | None:  # type: ignore[override]  # a chop is none of ours
        """Return the lines that have changed; None where none has."""
        spans = list(self._regions_to_spans(self._dirty_regions))
        told, self._told = self._told, set()
        self._dirty_regions.clear()
        if not spans:
            return None
        strips, drawn = self._drawn(spans)
        # Some draw into others when they are asked, and are themselves not seen.
        self._ask(told - drawn)
        return Painting(strips)

    def whole_lines(self, numbers: Iterable[int]) -> dict[int, Strip]:
        """Return lines of the screen by their numbers, for a screen over this one."""
        pieces: dict[int, list[Strip]] = {}
        for y, _, strip in self._drawn([(y, 0, self.size.width) for y in numbers])[0]:
            pieces.setdefault(y, []).append(strip)
        return {y: Strip.join(strips) for y, strips in pieces.items()}

    def seen_of(self, widget: Widget, regions: Collection[Region]) -> Iterable[Region]:
        """Return the stretches of regions in which a widget is seen."""
        if self.size.region in regions:
            # All of it is painted another way.
            return regions
        parts = [
            (y, max(part.begin, first), min(part.end, last))
            for y, first, last in self._regions_to_spans(regions)
            for part in self._line(y)
            if part.widget is widget
        ]
        return [Region(begin, y, end - begin, 1) for y, begin, end in parts if begin < end]

    def _drawn(self, spans: Iterable[tuple[int, int, int]]) -> tuple[list[tuple[int, int, Strip]], Set[Widget]]:
        """Return what is seen in stretches of lines, and the widgets that were asked for it."""
        drawn: dict[Widget, list[Strip]] = {}
        strips: list[tuple[int, int, Strip]] = []
        for y, first, last in spans:
            for begin, end, widget, seen, crop in self._line(y):
                if begin >= last or end <= first:
                    continue
                lines = drawn.get(widget)
                if lines is None:
                    lines = drawn[widget] = widget.render_lines(crop)
                begin, end = max(begin, first), min(end, last)
                strip = lines[y - seen.y]
                # Beside a scrollbar a line may end before the part does: to cut it takes as long as to draw it.
                if begin > seen.x or strip.cell_length > end - seen.x:
                    strip = strip.crop(begin - seen.x, end - seen.x)
                strips.append((y, begin, strip))
        return strips, drawn.keys()

    def _ask(self, widgets: Iterable[Widget]) -> None:
        for widget in widgets:
            region, clip = self.visible_widgets.get(widget, (Region(), Region()))
            if seen := region.intersection(clip):
                widget.render_lines(seen.translate(-region.offset))

    def _line(self, y: int) -> list[Part]:
        """Return what is seen in a line of the screen."""
        if self._arranged is not self.visible_widgets:
            self._arranged = self.visible_widgets
            self._parts.clear()
        found = self._parts.get(y)
        if found is None:
            found = self._parts[y] = self._seen_in(y) if 0 <= y < self.size.height else []
        return found

    def _seen_in(self, y: int) -> list[Part]:
        # The one in front comes first.
        regions = [(widget, region, region.intersection(clip)) for widget, (region, clip) in self._arranged.items()]
        placed = [(widget, region, seen) for widget, region, seen in regions if seen and seen.y <= y < seen.bottom]
        edges = {min(max(0, edge), self.size.width) for _, _, seen in placed for edge in (seen.x, seen.right)}
        parts: list[Part] = []
        for begin, end in pairwise(sorted(edges)):
            front = next((each for each in placed if each[2].x <= begin and end <= each[2].right), None)
            if front is None:
                continue
            widget, region, seen = front
            if parts and parts[-1].widget is widget and parts[-1].end == begin:
                parts[-1] = parts[-1]._replace(end=end)
            else:
                parts.append(Part(begin, end, widget, seen, seen.translate(-region.offset)))
        return parts
