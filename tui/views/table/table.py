"""Any number of ranks, a line for each: sorted, filtered, with the columns that there is room for.

Draws the lines in sight and no others; what has not changed in them is not painted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region, Size, Spacing
from textual.message import Message
from textual.strip import Strip

from ddptop.agent.client.frame import Frame
from ddptop.agent.text import clean, plural
from ddptop.agent.wire.hosts import HostFrame
from ddptop.tui.drawing import units
from ddptop.tui.drawing.filtered import Filtered
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.drawing.lines import Row, strip_of
from ddptop.tui.views.ranks import RankView
from ddptop.tui.views.table.columns import (
    Column,
    columns_of,
    fitting,
    matches,
    ordered,
    placed,
    rank_row,
    title_row,
    wanted_of,
)
from ddptop.tui.views.table.grouping import grouped, host_of, host_row, line_of, nowhere_row, states_of

_SORT_S: Final = 1.0
"""Lines change places no more often than this, so that they can be read."""


class RankTable(Filtered, RankView):
    """A line for each rank under a line of titles."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", id="table.filter", key_display="/",
                tooltip="Show only ranks with this number, place, host, state or activity"),
        Binding("escape", "clear", "All ranks", id="table.clear", tooltip="Show all ranks again"),
        Binding("greater_than_sign", "sort(1)", "Sort", id="table.sort", key_display=">",
                tooltip="Sort by the next column"),
        Binding("less_than_sign", "sort(-1)", "Sort back", id="table.sort_back", key_display="<", show=False,
                tooltip="Sort by the column before"),
        Binding("I", "reverse", "Reverse", id="table.reverse", tooltip="Reverse order", show=False),
        Binding("C", "columns", "Columns", id="table.columns", tooltip="Choose the columns", show=False),
        Binding("h", "hosts", "Hosts", id="table.hosts", tooltip="Group the ranks by host, or do not"),
        Binding("H", "fold_all", "Fold all", id="table.fold_all", show=False,
                tooltip="Show a line for each host and no rank, or the ranks again"),
        Binding("left", "fold(True)", "Fold", id="table.fold", tooltip="Hide the ranks of this host", show=False),
        Binding("right", "fold(False)", "Unfold", id="table.unfold", tooltip="Show the ranks of this host", show=False),
        Binding("up,shift+tab", "move(-1)", "Line above", id="table.up", tooltip="Choose the rank above", show=False),
        Binding("down,tab", "move(1)", "Line below", id="table.down", tooltip="Choose the rank below", show=False),
        Binding("pageup", "page(-1)", "Page up", id="table.page_up", tooltip="Go up by a page", show=False),
        Binding("pagedown", "page(1)", "Page down", id="table.page_down", tooltip="Go down by a page", show=False),
        Binding("home", "edge(0)", "First line", id="table.first", tooltip="Choose the first line", show=False),
        Binding("end", "edge(-1)", "Last line", id="table.last", tooltip="Choose the last line", show=False),
    ]  # fmt: skip

    begins = "table.filter"

    class ColumnsAsked(Message):
        """The user wants other columns."""

        def __init__(self, table: RankTable) -> None:
            super().__init__()
            self.table = table

    def __init__(self, frame: Frame, **options: Any) -> None:
        super().__init__(frame, **options)
        self.wanted: frozenset[str] | None = None
        """Keys of the columns the user has chosen, None for the usual ones."""
        self._by, self._falling = "rank", False
        self._groups = True
        """Ranks are grouped by host, where there are several."""
        self._folded: set[str] = set()
        """Names of hosts whose ranks are hidden."""
        self._order: list[int] = []
        """The rank or the heading on each line: see `grouping`."""
        self._of_host: dict[int, list[int]] = {}
        """By number of a host, its ranks in the order of the lines; empty where they are not grouped."""
        self._states: Sequence[str] = ()
        """Those of all ranks, where lines of hosts stand for them."""
        self._sorted_at: float | None = None
        self._columns: tuple[Column, ...] = ()
        self._left_out = 0
        """Columns that are wanted and that there is no room for."""
        self._captioned = ""
        self._drawn: dict[int, tuple[tuple[object, ...], Strip]] = {}
        """By line below the titles: the values that it was drawn from, and its cells."""

    # What is shown

    @property
    def columns(self) -> tuple[Column, ...]:
        return columns_of(self.frame, grouped=self.grouped)

    @property
    def grouped(self) -> bool:
        """True where ranks stand under the line of their host."""
        return self._groups and self.frame.hosts.several

    @property
    def shown(self) -> tuple[Column, ...]:
        """The columns there is room for."""
        return self._columns

    def choose_columns(self, keys: frozenset[str] | None) -> None:
        """Show these columns, as far as there is room, the usual ones for None."""
        self.wanted = keys
        self.renew()

    def show(self, frame: Frame) -> None:
        """Take in a new frame and repaint the lines in sight that look different in it."""
        if len(self.frame.ranks) != len(frame.ranks):
            self._sorted_at = None
            self.refresh(layout=True)
        elif self.frame.hosts.by_rank != frame.hosts.by_rank:
            self._sorted_at = None
        self.frame = frame
        if self._sorted_at is None or not 0 <= frame.at - self._sorted_at < _SORT_S:
            self._sort()
        self._states = frame.values("state") if self._of_host else ()
        before, self._drawn = self._drawn, {}
        base = self.base
        top = self.scroll_offset.y
        for y in range(1, self.size.height):
            line = top + y - 1
            found = before.get(line)
            key = self._key(line)
            if found is not None and found[0] == key:
                self._drawn[line] = found
                continue
            self._drawn[line] = key, self._draw(line, base)
            if found is None or found[1] != self._drawn[line][1]:
                self.refresh(Region(0, y, self.size.width, 1))

    def _key(self, line: int) -> tuple[object, ...]:
        """Return all values that a line shows; while they are equal it is not drawn again."""
        if line < len(self._order) and (number := host_of(self._order[line])) is not None:
            host = self._host(number)
            if host is None:
                return (len(self._of_host[number]),)
            # Its clock is estimated anew each second, and the frame's other hosts say how wide its name is.
            states = states_of(host, self._states)
            return host, states, host.host in self._folded, self.frame.verdict, len(self.frame.hosts)
        rank = self.frame.ranks[self._order[line]] if line < len(self._order) else None
        has_bar = any(column.key == "bar" for column in self._columns)
        return rank, self.frame.verdict, self.frame.step_ms if has_bar else None

    def _sort(self) -> None:
        ranks, words = self.frame.ranks, self.words
        columns = self.columns
        verdict = self.frame.verdict
        named = None if verdict is None else verdict.phase
        by_importance = placed(columns, ranks, [column.key for column in self._columns])
        fits = fitting(by_importance, self.wanted, self.size.width, named)
        if [column.key for column in fits] != [column.key for column in self._columns]:
            self._drawn.clear()
            self.refresh()
        self._columns = fits
        self._left_out = len(wanted_of(columns, self.wanted)) - len(fits)
        among = range(len(ranks)) if not words else [i for i, rank in enumerate(ranks) if matches(rank, words)]
        by = next((column for column in columns if column.key == self._by), columns[0])
        if by.key == "rank":
            # The order they are in; to look at each of thousands for it would cost more than to draw them.
            self._order = list(reversed(among)) if self._falling else list(among)
        else:
            self._order = ordered(ranks, among, by, falling=self._falling)
        self._of_host = {}
        if self.grouped:
            self._order, self._of_host = grouped(self._order, self.frame.hosts, self._folded)
        self._sorted_at = self.frame.at
        self.virtual_size = Size(0, 1 + max(3, len(self._order)))
        self._caption(by)

    def _caption(self, by: Column) -> None:
        total = units.count(len(self.frame.ranks))
        on = f" on {units.count(len(self.frame.hosts))} hosts" if self.frame.hosts.several else ""
        text = f"{total} ranks{on} by {by.meaning.partition(',')[0]}"
        if self.typed:
            shown = sum(map(len, self._of_host.values())) if self._of_host else len(self._order)
            text = f"{self.typed}  {units.count(shown)} of {total} ranks"
        if self._left_out:
            text = f"{text} · {keys_of(self)['table.columns']}: +{plural(self._left_out, 'column')}"
        if text != self._captioned:
            # A title draws all lines again, even where it is the same.
            self._captioned = text
            self.border_title = Content(text)

    def renew(self) -> None:
        """Sort and draw all again."""
        self._sorted_at = None
        self._drawn.clear()
        self.show(self.frame)
        super().renew()

    def fit(self) -> None:
        """Fit the columns to another width."""
        self.renew()

    def on_resize(self) -> None:
        self.bring_into_view()

    def notify_style_update(self) -> None:
        """Draw all again, in the colors of another theme."""
        self._drawn.clear()
        super().notify_style_update()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """All ranks and the titles, whatever the filter: the layout does not jump when it is typed."""
        hosts = len(self.frame.hosts) if self.grouped else 0
        return 1 + max(3, len(self.frame.ranks) + hosts)

    # Painting

    def _draw(self, line: int, base: Style) -> Strip:
        width = self.size.width
        if not self._order:
            return self.grounded(Strip(self._nothing(line)), 0, width)
        if line >= len(self._order):
            return self.grounded(Strip.blank(0), 0, width)
        number = host_of(self._order[line])
        if number is not None:
            strip = strip_of(self._host_row(number), width)
            chosen = self._is_folded(number) and self.frame.hosts.by_rank.get(self.chosen) == number
        else:
            rank = self.frame.ranks[self._order[line]]
            strip = strip_of(rank_row(rank, self.frame, self._columns, self.ink), width)
            chosen = rank.rank == self.chosen
        if chosen:
            strip = strip.apply_style(self.ink.ground("row-chosen"))
        return strip.apply_style(base)

    def _host(self, number: int) -> HostFrame | None:
        """Return a host by its number; None for that of ranks of which no host is known."""
        return self.frame.hosts[number] if number < len(self.frame.hosts) else None

    def _host_row(self, number: int) -> Row:
        host = self._host(number)
        if host is None:
            return nowhere_row(len(self._of_host[number]), self.ink)
        states, folded = states_of(host, self._states), host.host in self._folded
        return host_row(host, states, self.frame, self.size.width, self.ink, folded=folded)

    def _nothing(self, line: int) -> Row:
        if not self.filter:
            texts = [" no ranks yet"]
        else:
            texts = [
                f" No rank matches “{clean(self.filter, 60)}”.",
                " A filter is looked for in rank number, place, host, state and activity.",
                f" {keys_of(self)['table.clear']} shows all ranks again.",
            ]
        return [Segment(texts[line] if line < len(texts) else "", self.ink["label" if line else "bold value"])]

    def render_line(self, y: int) -> Strip:
        """Return the titles, or one line below them."""
        if y == 0:
            titles = title_row(self._columns, self._by, falling=self._falling, ink=self.ink)
            return self.grounded(Strip(titles), 0, self.size.width)
        line = y - 1 + self.scroll_offset.y
        found = self._drawn.get(line)
        if found is None or found[1].cell_length != self.size.width:
            found = self._drawn[line] = self._key(line), self._draw(line, self.base)
        return found[1]

    # Choosing

    def mark(self, before: int) -> None:
        for line in (self._line_of(before), self._line):
            if line is not None:
                self._drawn.pop(line, None)
                y = line + 1 - self.scroll_offset.y
                if 0 < y < self.size.height:
                    self.refresh(Region(0, y, self.size.width, 1))

    @property
    def _line(self) -> int | None:
        """The chosen rank's line, or that of its host where it is folded; None where the filter hides it."""
        return self._line_of(self.chosen)

    def _line_of(self, rank: int) -> int | None:
        numbers = self.frame.values("rank")
        index = numbers.index(rank) if rank in numbers else -1
        if index >= 0 and index in self._order:
            return self._order.index(index)
        number = self.frame.hosts.by_rank.get(rank)
        of_host = self._of_host.get(-1 if number is None else number, ())
        return self._order.index(line_of(number)) if number is not None and index in of_host else None

    def bring_into_view(self) -> None:
        line = self._line
        if line is not None:
            # With the first of a host, the host.
            above = 1 if line and self._order[line - 1] < 0 <= self._order[line] else 0
            # The titles cover the first line of what is in sight.
            region = Region(0, line + 1 - above, self.size.width, 1 + above)
            self.scroll_to_region(region, animate=False, spacing=Spacing(top=1), force=True)

    def _choose(self, line: int, by: int = 1) -> None:
        """Choose what stands on a line: on that of a host its first rank, or further on `by` its neighbours."""
        if not self._order:
            return
        line = max(0, min(len(self._order) - 1, line))
        if (number := host_of(self._order[line])) is None:
            self.chosen = self.frame.ranks[self._order[line]].rank
        elif not self._is_folded(number) and by < 0 < line:
            self._choose(line - 1, by)
        else:
            self.chosen = self.frame.ranks[self._of_host[number][0]].rank

    def _is_folded(self, number: int) -> bool:
        host = self._host(number)
        return host is not None and host.host in self._folded

    def action_move(self, by: int) -> None:
        """Choose a neighbour; the first line where the filter hides the chosen rank."""
        self._choose(0 if self._line is None else self._line + by, by)

    def action_page(self, by: int) -> None:
        """Choose the rank a page further."""
        self._choose((self._line or 0) + by * max(1, self.size.height - 2))

    def action_edge(self, index: int) -> None:
        self._choose(index % max(1, len(self._order)))

    def on_click(self, event: events.Click) -> None:
        """Sort by the title under the mouse, or choose the rank; with a double click, open it."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if offset.y == 0:
            key = self._column_at(offset.x)
            if key is not None:
                self._sort_by(key)
            return
        line = offset.y - 1 + self.scroll_offset.y
        if line < len(self._order):
            self._choose(line)
            if (number := host_of(self._order[line])) is not None:
                self.action_fold(not self._is_folded(number))
                return
            if event.chain == 2:
                self.action_open()

    # Order, filter, columns

    def _column_at(self, x: int) -> str | None:
        end = 0
        for column in self._columns:
            end += column.width + 2
            if x < end:
                return column.key
        return None

    def _sort_by(self, key: str) -> None:
        if key == self._by:
            self._falling = not self._falling
        else:
            self._by = key
            self._falling = next(column.falling for column in self.columns if column.key == key)
        self.renew()

    def action_sort(self, by: int) -> None:
        keys = [column.key for column in self._columns if column.key != "mark"]
        at = keys.index(self._by) if self._by in keys else -1
        self._sort_by(keys[(at + by) % len(keys)])

    def action_reverse(self) -> None:
        self._falling = not self._falling
        self.renew()

    def action_columns(self) -> None:
        self.post_message(self.ColumnsAsked(self))

    def action_hosts(self) -> None:
        """Group the ranks by host, or do not."""
        self._groups = not self._groups
        self.refresh(layout=True)
        self.renew()
        self.bring_into_view()

    def action_fold(self, fold: bool) -> None:
        """Hide the ranks of the chosen one's host, or show them."""
        host = self.frame.hosts.of(self.chosen)
        if host is not None:
            (self._folded.add if fold else self._folded.discard)(host.host)
            self.renew()
            self.bring_into_view()

    def action_fold_all(self) -> None:
        """Hide the ranks of all hosts; where they are hidden, show them."""
        names = {host.host for host in self.frame.hosts}
        self._folded = set() if names <= self._folded else names
        self.renew()
        self.bring_into_view()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer to group by host where there are several, and to fold where they are grouped."""
        if action in ("fold", "fold_all"):
            return self.grouped
        return self.frame.hosts.several if action == "hosts" else super().check_action(action, parameters)

    def settle(self) -> None:
        """Choose a rank that matches."""
        if self._line is None:
            self._choose(0)

    def action_clear(self) -> None:
        """Show all ranks, and the chosen one among them."""
        super().action_clear()
        self.bring_into_view()
