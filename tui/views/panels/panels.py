"""A panel for each rank: one widget paints them all, because a widget for each costs ten times as much."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.strip import Strip

from ddptop.tui.drawing.lines import Row
from ddptop.tui.model.frame import Frame
from ddptop.tui.views.panels.panel import MAX_HEIGHT, MIN_HEIGHT, MIN_WIDTH, Shape, draw_panel
from ddptop.tui.views.ranks import RankView


def arrange(ranks: int, width: int, lines: int) -> tuple[int, int, int]:
    """Return columns, rows and the height of a panel for so many ranks.

    `width` is what there is; `lines` is what the panels may take before they have to be scrolled.
    """
    most = max(1, min(ranks, width // MIN_WIDTH))
    rows = math.ceil(ranks / most) if ranks else 0
    columns = math.ceil(ranks / rows) if rows else 1
    height = max(MIN_HEIGHT, min(MAX_HEIGHT, lines // rows)) if rows else MIN_HEIGHT
    return columns, rows, height


class Plan(NamedTuple):
    """Where the panels are."""

    columns: int
    rows: int
    height: int
    """Lines of a panel."""
    width: int
    """Cells of all columns together."""

    def place(self, index: int) -> Region:
        """Return where a panel is, among all lines that there are."""
        row, column = divmod(index, self.columns)
        left = self.width * column // self.columns
        return Region(left, row * self.height, self.width * (column + 1) // self.columns - left, self.height)


class PanelGrid(RankView):
    """A panel for each rank, as many in a row as fit."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Rank left", id="panels.left", tooltip="Choose the rank to the left", show=False),
        Binding(
            "right", "move(1)", "Rank right", id="panels.right", tooltip="Choose the rank to the right", show=False
        ),
        Binding("up", "move_row(-1)", "Rank above", id="panels.up", tooltip="Choose the rank above", show=False),
        Binding("down", "move_row(1)", "Rank below", id="panels.down", tooltip="Choose the rank below", show=False),
        Binding("tab", "cycle(1)", "Next rank", id="panels.next", tooltip="Choose the next rank (wraps)", show=False),
        Binding(
            "shift+tab",
            "cycle(-1)",
            "Previous rank",
            id="panels.previous",
            tooltip="Choose the previous rank (wraps)",
            show=False,
        ),
        Binding("home", "edge(0)", "First rank", id="panels.first", tooltip="Choose the first rank", show=False),
        Binding("end", "edge(-1)", "Last rank", id="panels.last", tooltip="Choose the last rank", show=False),
    ]

    def __init__(self, frame: Frame, **options: Any) -> None:
        super().__init__(frame, **options)
        self._drawn: dict[int, tuple[Shape, list[Row]]] = {}
        self._painted_by: Plan | None = None
        """The plan, while lines are drawn."""

    # Layout

    @property
    def _plan(self) -> Plan:
        # One cell is reserved for the scrollbar whether it is there or not: a layout that
        # depended on it could make it come and go for ever.
        arranged = arrange(len(self.frame.ranks), self.container_size.width - 1, self._budget)
        return Plan(*arranged, self.scrollable_content_region.width)

    @property
    def _budget(self) -> int:
        return int(self.app.size.height * 0.6)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """All rows of panels; the style sheet sets the limit."""
        _, rows, height = arrange(len(self.frame.ranks), width - 1, self._budget)
        return rows * height

    def on_resize(self) -> None:
        self._rearrange()
        self.bring_into_view()

    def _rearrange(self) -> None:
        plan = self._plan
        self._drawn.clear()
        self.virtual_size = Size(0, plan.rows * plan.height)
        self.refresh()

    # Painting

    def show(self, frame: Frame) -> None:
        """Take in a new frame and repaint the lines in sight that look different in it."""
        before, self.frame = self.frame, frame
        if len(before.ranks) != len(frame.ranks):
            self._rearrange()
            self.refresh(layout=True)
            return
        plan = self._plan
        drawn, self._drawn = self._drawn, {}
        changed: set[int] = set()
        for index in self._visible(plan):
            place = plan.place(index)
            shape, rows = self._drawn[index] = self._draw(index, place)
            old_shape, old_rows = drawn.get(index, (None, rows))
            if old_shape != shape:
                changed.update(place.line_range)
            else:
                changed.update(
                    place.y + line
                    for line, (row, old) in enumerate(zip(rows, old_rows, strict=True))
                    if row is not old and row != old
                )
        self.refresh_numbered(changed)

    @property
    def in_sight(self) -> frozenset[int]:
        """Ranks whose panels can be seen: they draw the loss of every step."""
        return frozenset(self.frame.ranks[index].rank for index in self._visible(self._plan))

    def _visible(self, plan: Plan) -> range:
        """Return the indices of the ranks whose panels can be seen."""
        top, lines = self.scroll_offset.y, self.scrollable_content_region.height
        last = -(-(top + lines) // plan.height) * plan.columns
        return range(top // plan.height * plan.columns, min(last, len(self.frame.ranks)))

    def _draw(self, index: int, place: Region) -> tuple[Shape, list[Row]]:
        rank = self.frame.ranks[index]
        shape = Shape(place.width, place.height, rank.rank == self.chosen)
        return shape, draw_panel(rank, self.frame, shape, self.ink)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the lines of a part."""
        self._painted_by = self._plan
        try:
            return super().render_lines(crop)
        finally:
            self._painted_by = None

    def render_line(self, y: int) -> Strip:
        """Return one line through the panels of a row."""
        plan = self._painted_by or self._plan
        row, line = divmod(y + self.scroll_offset.y, plan.height)
        parts: list[Row] = []
        place = Region()
        for index in range(row * plan.columns, min((row + 1) * plan.columns, len(self.frame.ranks))):
            place = plan.place(index)
            drawn = self._drawn.get(index)
            # A resize can paint once before it is told: what was drawn has another size then.
            if drawn is None or (drawn[0].width, drawn[0].height) != (place.width, place.height):
                drawn = self._drawn[index] = self._draw(index, place)
            parts.append(drawn[1][line])
        # A strip costs more than the segments in it: one for the line, not one for each panel.
        return self.grounded_row(chain.from_iterable(parts), place.right if parts else 0)

    def notify_style_update(self) -> None:
        """Draw all again, in the colors of another theme."""
        self._drawn.clear()
        super().notify_style_update()

    # Choosing

    def mark(self, before: int) -> None:
        plan = self._plan
        for index in {self._index_of(before), self._index}:
            self._drawn.pop(index, None)
            self.refresh(plan.place(index).translate(-self.scroll_offset))

    @property
    def _index(self) -> int:
        return self._index_of(self.chosen)

    def _index_of(self, rank: int) -> int:
        numbers = self.frame.values("rank")
        return numbers.index(rank) if rank in numbers else 0

    def _choose(self, index: int) -> None:
        if 0 <= index < len(self.frame.ranks):
            self.chosen = self.frame.ranks[index].rank

    def bring_into_view(self) -> None:
        if self.frame.ranks:
            self.scroll_to_region(self._plan.place(self._index), animate=False)

    def action_move(self, by: int) -> None:
        """Choose a neighbour."""
        self._choose(self._index + by)

    def action_move_row(self, by: int) -> None:
        """Choose the neighbour above or below; from the last full row, the last rank."""
        plan = self._plan
        if 0 <= self._index // plan.columns + by < plan.rows:
            self._choose(min(self._index + by * plan.columns, len(self.frame.ranks) - 1))

    def action_cycle(self, by: int) -> None:
        """Choose the next rank, after the last one the first."""
        if self.frame.ranks:
            self._choose((self._index + by) % len(self.frame.ranks))

    def action_edge(self, index: int) -> None:
        self._choose(index % max(1, len(self.frame.ranks)))

    def on_click(self, event: events.Click) -> None:
        """Choose the rank under the mouse; with a double click, open it."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        place = offset + self.scroll_offset
        plan = self._plan
        for index in self._visible(plan):
            if plan.place(index).contains(place.x, place.y):
                self._choose(index)
                if event.chain == 2:
                    self.action_open()
