"""All ranks over time, one number of each: a slow rank is a line that the eye finds among a thousand.

One widget paints it all, line by line, and only what has changed. The cursor reads values and
chooses the rank. The arithmetic is loaded when it is first shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.strip import Strip

from ddptop.agent.client.frame import Frame
from ddptop.agent.wire.frames import ENDED
from ddptop.agent.wire.steps.numbers import WIDTHS_S
from ddptop.tui.drawing import units
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.drawing.theme import SHADE_SIGNS, SHADES
from ddptop.tui.model.metrics import METRICS
from ddptop.tui.model.sentences import stepless
from ddptop.tui.views.heatmap.lines import ABOVE, BELOW, Sight, gutter, heat_row, marks, names_width
from ddptop.tui.views.ranks import RankView

if TYPE_CHECKING:
    from ddptop.tui.views.heatmap.cells import HeatCells

_PER_RANK: Final = 4
"""Lines that a rank takes at most."""
_PAGE: Final = 8


class Heatmap(RankView):
    """Rank by time, newest at the right edge."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", id="heatmap.up", tooltip="Move the cursor to the rank above", show=False),
        Binding("down", "move(1)", "Down", id="heatmap.down", tooltip="Move the cursor to the rank below", show=False),
        Binding("pageup", f"move(-{_PAGE})", "Up", id="heatmap.page_up", tooltip="Move up by eight rows", show=False),
        Binding(
            "pagedown", f"move({_PAGE})", "Down", id="heatmap.page_down", tooltip="Move down by eight rows", show=False
        ),
        Binding("left", "later(-1)", "Back", id="heatmap.left", tooltip="Move the cursor back in time", show=False),
        Binding("right", "later(1)", "On", id="heatmap.right", tooltip="Move the cursor on in time", show=False),
        Binding("home", "edge(0)", "First rank", id="heatmap.first", tooltip="Move to the first rank", show=False),
        Binding("end", "now", "Now", id="heatmap.now", tooltip="Return to the newest, and follow it", show=False),
        Binding("n", "highest", "Highest", id="heatmap.highest", tooltip="Go to the rank with the highest value there"),
        Binding("m", "metric(1)", "Metric", id="heatmap.metric", tooltip="Show the next number: step time, wait, …"),
        Binding(
            "B", "metric(-1)", "Metric", id="heatmap.metric_back", tooltip="Show the number before", show=False
        ),
        Binding(
            "plus,equals_sign", "zoom(-1)", "Zoom", id="heatmap.zoom_in", key_display="+ -",
            tooltip="Show less time, more finely", show=False,
        ),
        Binding("minus", "zoom(1)", "Zoom out", id="heatmap.zoom_out", tooltip="Show more time", show=False),
        Binding(
            "left_square_bracket", "scroll_time(-1)", "Scroll", id="heatmap.back", key_display="[ ]",
            tooltip="Scroll half a screen back in time", show=False,
        ),
        Binding(
            "right_square_bracket", "scroll_time(1)", "Scroll on", id="heatmap.forward",
            tooltip="Scroll half a screen on in time", show=False,
        ),
    ]  # fmt: skip

    def __init__(self, frame: Frame, **options: Any) -> None:
        super().__init__(frame, **options)
        self.metric = next(iter(METRICS))
        self.level = 0
        """Index into `WIDTHS_S`."""
        self.cursor: int | None = None
        """The bucket whose values are shown below, None for the newest that the chosen rank has."""
        self._last: int | None = None
        """The bucket at the right edge, None to follow the newest."""
        self._cells: HeatCells | None = None
        self._drawn: dict[int, tuple[object, Strip]] = {}

    # Layout

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many lines as the ranks can use; the style sheet sets the limit."""
        between = max(0, len(self.frame.hosts) - 1)
        return ABOVE + BELOW + min(_PER_RANK * max(1, self.frame.world), max(self.frame.world, 2 * _PAGE)) + between

    @property
    def _lines(self) -> int:
        """Lines for the map itself."""
        return max(1, self.size.height - ABOVE - BELOW)

    @property
    def _width(self) -> int:
        return max(1, self.size.width - self._before - gutter(self.frame.world) - 1)

    @property
    def _before(self) -> int:
        """Cells for the names of hosts."""
        return names_width(self.frame.hosts, self.size.width)

    @property
    def _shaded(self) -> bool:
        """True where the terminal has colors for a scale."""
        return not self.app.no_color and self.app.console.color_system in ("256", "truecolor")

    # Time

    @property
    def _newest(self) -> int:
        frame = self.frame
        at = frame.at if frame.ended_at is None else frame.ended_at
        newest = int(at // WIDTHS_S[self.level])
        # Until the first step of a bucket is there it is no news.
        return newest if frame.history is None or frame.history.by_time.knows(self.level, newest) else newest - 1

    @property
    def _edge(self) -> int:
        """The bucket at the right edge."""
        return self._newest if self._last is None else min(self._last, self._newest)

    @property
    def _at(self) -> int:
        """The bucket that the cursor is on, always in sight."""
        edge = self._edge
        if self._cells is None:
            return edge
        if self.cursor is None:
            return self._cells.latest(self.chosen)
        return max(edge - self._cells.columns + 1, min(edge, self.cursor))

    # Painting

    def fit(self) -> None:
        self._drawn.clear()
        self.show(self.frame)

    def awaits_history(self, width: int) -> bool:
        history = self.frame.history
        if history is None:
            return False
        history.by_time.window(self.metric, self.level, self._edge, width)
        return not history.by_time.complete

    def show(self, frame: Frame) -> None:
        """Take in a new frame and repaint the cells that look different in it."""
        if self.frame.hosts.by_rank != frame.hosts.by_rank:
            self._drawn.clear()
        self.frame = frame
        if not self.size or frame.history is None:
            self.refresh()
            return
        from ddptop.tui.views.heatmap.cells import HeatCells

        self._cells = HeatCells(
            frame.history.by_time, self.metric, self.level, self._edge, self._width, self._lines,
            halves=self._shaded, shades=SHADES if self._shaded else len(SHADE_SIGNS), hosts=frame.hosts,
            previous=self._cells, fills=self._last is None,
        )  # fmt: skip
        sight = self._sight()
        for y in range(self.size.height):
            before = self._drawn.get(y)
            key = self._key(y, sight)
            if before is None or before[0] != key:
                strip = self._draw(y, sight)
                self._drawn[y] = key, strip
                if before is None or before[1] != strip:
                    self._refresh_from(y, before[1] if before is not None else None, strip)

    def _refresh_from(self, y: int, before: Strip | None, now: Strip) -> None:
        # While time stands in one bucket only the newest cells change: what is left of them is not sent again.
        same = 0
        if before is not None:
            for old, new in zip(before, now, strict=False):
                if old != new:
                    break
                same += new.cell_length
        self.refresh(Region(same, y, max(1, self.size.width - same), 1))

    def _again(self) -> None:
        """Draw all lines anew: the cursor, the metric or the colors changed."""
        self._drawn.clear()
        if self.is_mounted:
            self.show(self.frame)
            self.refresh()

    def mark(self, before: int) -> None:
        """Draw all again, with the rank marked."""
        self._drawn.clear()
        super().mark(before)

    def notify_style_update(self) -> None:
        """Draw all again, in the colors of another theme."""
        self._drawn.clear()
        super().notify_style_update()

    def render_line(self, y: int) -> Strip:
        if self.frame.history is None or self._cells is None:
            row = [Segment(units.shorten(" no step yet", self.size.width), self.ink["label"])] if y == 0 else []
            return self.grounded(Strip(row), 0, self.size.width)
        drawn = self._drawn.get(y)
        if drawn is None:
            sight = self._sight()
            drawn = self._drawn[y] = self._key(y, sight), self._draw(y, sight)
        return self.grounded(drawn[1], 0, self.size.width)

    def _sight(self) -> Sight:
        frame, chosen = self.frame, self.chosen_frame
        return Sight(
            metric=METRICS[self.metric],
            level=self.level,
            newest=self._newest,
            edge=self._edge,
            at=self._at,
            width=self._width,
            world=frame.world,
            chosen=self.chosen,
            slow=None if frame.verdict is None else frame.verdict.rank,
            ended=frame.state in ENDED,
            unseen=chosen is not None and chosen.mechanism is None,
            complete=frame.history is None or frame.history.by_time.complete,
            shaded=self._shaded,
            keys=keys_of(self),
            hosts=frame.hosts,
            before=self._before,
            stepless=stepless(frame),
        )

    def _key(self, y: int, sight: Sight) -> object:
        """Return what a line of the map looks like; the few other lines are drawn each time."""
        line = y - ABOVE
        if self._cells is None or not 0 <= line < self._cells.bands.lines:
            return object()
        return (
            self._cells.key(line),
            sight.at if marks(self._cells, sight, line) else None,
            sight.chosen,
            sight.slow,
            self._unheard(line),
        )

    def _unheard(self, line: int) -> object:
        """Return which hosts are not heard, for a line that names one."""
        named = self._cells is not None and line in self._cells.bands.names
        return [host.host for host in self.frame.hosts if host.is_unheard] if named else None

    def _draw(self, y: int, sight: Sight) -> Strip:
        return Strip(heat_row(self._cells, sight, y - ABOVE, self.size.width, self.ink)).adjust_cell_length(
            self.size.width
        )

    # Keys

    def action_move(self, by: int) -> None:
        """Choose the rank a row above or below: where a row is many ranks, the one that it shows."""
        cells = self._cells
        if not self.frame.world:
            return
        if cells is None:
            self.chosen = max(0, min(self.frame.world - 1, self.chosen + by))
            return
        if cells.bands.group == 1:
            self.chosen = cells.rank_at(cells.place_of(self.chosen) + by)
            return
        before = cells.band_of(self.chosen)
        band = max(0, min(cells.bands.rows - 1, before + by))
        if band != before:
            worst = cells.worst(band, self._at)
            self.chosen = cells.rank_at(cells.bands.first(band)) if worst is None else worst[0]

    def action_highest(self) -> None:
        """Choose the rank with the highest value at the cursor."""
        found = None if self._cells is None else self._cells.highest(self._at)
        if found is not None:
            self.chosen = found

    def action_edge(self, rank: int) -> None:
        self.chosen = rank

    def action_later(self, by: int) -> None:
        """Move the cursor in time; at the edge the map scrolls."""
        at = self._at + by
        columns = self._width if self._cells is None else self._cells.columns
        if at < self._edge - columns + 1:
            self._turn_to(self._edge - 1)
        elif at > self._edge:
            self._turn_to(self._edge + 1)
        self.cursor = None if at >= self._newest else at
        self._again()

    def _turn_to(self, edge: int) -> None:
        if self.frame.history is not None:
            edge = max(edge, self._newest - self.frame.history.by_time.columns + self._width)
        self._last = None if edge >= self._newest else edge

    def action_now(self) -> None:
        self._last = self.cursor = None
        self._again()

    def action_scroll_time(self, by: int) -> None:
        """Scroll by half of what is in sight."""
        self._turn_to(self._edge + by * max(1, self._width // 2))
        self.cursor = None if self._last is None and self.cursor is None else self._at
        self._again()

    def action_zoom(self, by: int) -> None:
        """Show time in buckets of another width, with the cursor on the same moment."""
        level = max(0, min(len(WIDTHS_S) - 1, self.level + by))
        if level == self.level:
            return
        before = WIDTHS_S[self.level]
        moment = self._at * before
        following, at_end = self._last is None, self.cursor is None
        self.level, self._cells = level, None
        if not at_end:
            self.cursor = moment // WIDTHS_S[level]
        if not following or not at_end:
            self._last = None
            if self.cursor is not None and self.cursor <= self._newest - self._width:
                self._turn_to(self.cursor + self._width // 2)
        self._again()

    def action_metric(self, by: int) -> None:
        names = list(METRICS)
        self.metric = names[(names.index(self.metric) + by) % len(names)]
        self._cells = None
        self._again()

    def on_click(self, event: events.Click) -> None:
        """Choose what is under the mouse; with a double click, open the rank."""
        offset, cells = event.get_content_offset(self), self._cells
        if offset is None or cells is None or not 0 <= offset.y - ABOVE < cells.bands.lines:
            return
        upper, _ = cells.bands.of_line(offset.y - ABOVE)
        if upper is None:
            return
        cell = offset.x - self._before - gutter(self.frame.world) - (self._width - cells.width)
        if 0 <= cell < cells.width:
            self.cursor = cells.bucket_at(cell)
        worst = cells.worst(upper, self._at)
        self.chosen = cells.rank_at(cells.bands.first(upper)) if worst is None else worst[0]
        self._again()
        if event.chain == 2:
            self.action_open()
