"""A panel for each rank: one widget paints them all, because a widget for each costs ten times as much."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.strip import Strip

from ddptop.agent.client.frame import Frame
from ddptop.agent.wire import HELD
from ddptop.agent.wire.frames import ENDED, OUTSIDE, ByLooks, RankFrame
from ddptop.agent.wire.vocabulary.mesh import place_of
from ddptop.tui.drawing import units
from ddptop.tui.drawing.bars import PhaseCells, gauge, looks_bar, phase_cells, phase_row, sparkline
from ddptop.tui.drawing.lines import Row, figure, fitted, spread, width_of
from ddptop.tui.drawing.theme import MARKS, Ink, letters_of
from ddptop.tui.model.diagnosis import hang
from ddptop.tui.model.metrics import load_of
from ddptop.tui.model.sentences import place_of_looks
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
            # A resize can paint once before its message comes: the last drawing has another size then.
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


MIN_WIDTH = 38
"""Cells a panel needs to show everything, its border included."""
MIN_HEIGHT = 7
MAX_HEIGHT = 10

_STEP = 12
"""Cells of a title that are reserved for the step."""
_ROWS = 1024
"""Rows that are not drawn again while their values are the same, of each kind."""
_IN_LINE = 3
"""Phases in a line of the legend that has their names."""
_Amounts = tuple[tuple[str, str, str], ...]
"""The phases of a step, their letters and times."""
_ROUND = tuple("╭─╮│╰─╯")
_HEAVY = tuple("┏━┓┃┗━┛")


class Shape(NamedTuple):
    """How large a panel is, and whether it is the chosen one."""

    width: int
    height: int
    chosen: bool


def draw_panel(rank: RankFrame, frame: Frame, shape: Shape, ink: Ink) -> list[Row]:
    """Return the lines of a panel, border included, all as wide as it is.

    A line that shows the same as one of before may be that very row: rows are not to be changed.
    """
    content = (_starting if rank.state == "starting" and not rank.step else _stepping)(rank, frame, shape, ink)
    lines = shape.height - 2
    content = content[:lines] + [_blank(shape, ink)] * (lines - len(content))
    return [_top(rank, frame, shape, ink), *content, _bottom(rank, frame, shape, ink)]


def _signs(shape: Shape, ink: Ink) -> tuple[tuple[str, ...], Style]:
    """Return what the border consists of, and its style."""
    return (_HEAVY, ink["rank-chosen"]) if shape.chosen else (_ROUND, ink["rank-border"])


def _edged(row: Row, shape: Shape, ink: Ink) -> Row:
    (_, _, _, edge, *_), line = _signs(shape, ink)
    return [Segment(edge, line), Segment(" "), *fitted(row, shape.width - 4), Segment(" "), Segment(edge, line)]


@lru_cache(maxsize=16)
def _blank(shape: Shape, ink: Ink) -> Row:
    return _edged([], shape, ink)


def _bottom(rank: RankFrame, frame: Frame, shape: Shape, ink: Ink) -> Row:
    """Return the lower edge, in which the host stands, where there are several."""
    host = frame.hosts.of(rank.rank) if frame.hosts.several else None
    return _lower_edge(None if host is None else host.host, host is not None and host.is_unheard, shape, ink)


@lru_cache(maxsize=_ROWS)
def _lower_edge(host: str | None, is_unheard: bool, shape: Shape, ink: Ink) -> Row:
    (*_, e, f, g), line = _signs(shape, ink)
    if host is None:
        return [Segment(e + f * (shape.width - 2) + g, line)]
    name = Segment(f" {units.shorten(host, shape.width - 6)} ", ink["bold state-silent" if is_unheard else "label"])
    rest = max(0, shape.width - 3 - width_of([name]))
    return fitted([Segment(e + f, line), name, Segment(f * rest + g, line)], shape.width)


def _top(rank: RankFrame, frame: Frame, shape: Shape, ink: Ink) -> Row:
    """Return the upper edge, in which the rank stands, and how far it is."""
    inner = shape.width - 4
    (a, b, c, *_), line = _signs(shape, ink)
    left, taken = _left_title(rank.rank, rank.state, *mark_of(rank, frame), place_of(rank.coordinates), inner, ink)
    right = _right_title(rank, inner - 1 - taken, ink)
    gap = inner - taken - width_of(right)
    return fitted(
        [Segment(a + b, line), *left, Segment(b * max(0, gap), line), *right, Segment(b + c, line)], shape.width
    )


@lru_cache(maxsize=_ROWS)
def _left_title(rank: int, state: str, mark: str, mark_hue: str, place: str, inner: int, ink: Ink) -> tuple[Row, int]:
    """Return number, state and place of a rank, and the cells that they take."""
    hue = ink[f"bold state-{state}"]
    row = [Segment(f" {rank} ", ink["bold value"]), Segment(MARKS[state], hue)]
    if state != "running":
        row.append(Segment(f" {state}", hue))
    row.append(Segment(f" {mark} " if mark else " ", ink[mark_hue]))
    if place and width_of(row) + cell_len(place) + 1 + _STEP <= inner:
        row.append(Segment(f"{place} ", ink["value"]))
    return row, width_of(row)


def mark_of(rank: RankFrame, frame: Frame) -> tuple[str, str]:
    """Return what is wrong with this rank in particular, in a word or two, and the name of its hue."""
    if rank.state in ENDED:
        return ("◀ first" if rank.rank == frame.cause_rank and frame.world > 1 else ""), "bold level-error"
    if rank.rank in hang.culprits(frame):
        return "◀ hangs", "bold level-error"
    if rank.health is not None:
        return "! not finite", "bold level-error"
    if frame.verdict is not None and frame.verdict.rank == rank.rank:
        return "◀ slow" if frame.verdict.phase else "◀", "bold rank-slow"
    return "", "label"


def _right_title(rank: RankFrame, room: int, ink: Ink) -> Row:
    """Return step and age in at most `room` cells; without room the word `step` goes first, then the number."""
    if rank.step is None:
        return []
    step = f"{units.count(rank.step)}{' by its log' if rank.from_log else ''}"
    age, hue = "", "label"
    # A held rank's age says nothing that the header does not, and would move what stands still.
    if rank.state not in (*ENDED, *HELD) and rank.step_age_s is not None:
        age, hue = f"{units.age(rank.step_age_s)} ago ", "bold rank-slow" if rank.state == "stalled" else "label"
    aged = [Segment(age, ink[hue])] if age else []
    for text in (f" step {step} ", f" {step} "):
        if len(text) + len(age) <= room:
            return [Segment(text, ink["label"]), *aged]
    return aged if len(age) <= room else []


def _starting(rank: RankFrame, frame: Frame, shape: Shape, ink: Ink) -> list[Row]:
    since = None if frame.started_at is None else frame.at - frame.started_at
    doing = units.shorten(rank.activity or "waiting for the process", shape.width - 4)
    waited = [] if since is None else [Segment(units.age(since).strip() + " since launch", ink["label"])]
    return [
        _edged([Segment(doing, ink["bold state-starting"])], shape, ink),
        _edged(waited, shape, ink),
        _blank(shape, ink),
        _identity(rank, frame, shape, ink),
        _resources(rank, shape, ink),
    ]


def _stepping(rank: RankFrame, frame: Frame, shape: Shape, ink: Ink) -> list[Row]:
    """Return the lines between the edges of a rank that steps; those of which nothing has changed are not drawn."""
    inner, room = shape.width - 4, shape.height - 2
    amounts = _amounts(rank)
    lines = -(-len(amounts) // _IN_LINE)
    tall = 2 if room >= 6 + lines else 1
    is_outside = rank.known_by == OUTSIDE
    rows = (
        [] if is_outside and not rank.from_log else [_edged(row, shape, ink) for row in _loss(rank, inner, tall, ink)]
    )
    rows.append(_looks(rank.by_looks, shape, ink) if is_outside else _step(rank, frame, shape, ink))
    rows += _long_legend(amounts, shape, ink) if room >= 5 + lines and inner >= 45 else _legend(amounts, shape, ink)
    rows.append(_place(rank.by_looks, shape, ink) if is_outside else _collective(rank, shape, ink))
    if rank.ended is not None:
        rows.append(_edged([Segment(units.shorten(rank.ended, inner), ink[f"state-{rank.state}"])], shape, ink))
        return [*rows, _identity(rank, frame, shape, ink)]
    rows.append(_resources(rank, shape, ink))
    if room >= 6:
        rows.append(_identity(rank, frame, shape, ink))
    if is_outside and rank.by_looks is not None and rank.by_looks.looks:
        text = f"{rank.by_looks.looks:,} looks at {rank.by_looks.cost_percent:.1f}% of a core"
        rows.append(_edged([Segment(text, ink["faint"])], shape, ink))
    return rows


def _loss(rank: RankFrame, inner: int, tall: int, ink: Ink) -> list[Row]:
    broken = rank.loss is not None and not math.isfinite(rank.loss)
    head = [
        Segment("loss ", ink["label"]),
        figure(units.loss(rank.loss, unsure=rank.is_loss_unsure), ink, "bold level-error" if broken else "bold value"),
    ]
    course = sparkline(rank.losses, rank.step or 0, max(0, inner - 14), ink, tall)
    return [[*(head if index == 0 else [Segment(" " * 12)]), Segment("  "), *row] for index, row in enumerate(course)]


def _step(rank: RankFrame, frame: Frame, shape: Shape, ink: Ink) -> Row:
    cells: PhaseCells | None = None
    if rank.phases_ms is not None and rank.step_ms is not None:
        cells = phase_cells(rank.phases_ms, frame.step_ms or rank.step_ms, max(0, shape.width - 19))
    return _step_row(units.milliseconds(rank.current_step_ms), cells, shape, ink)


@lru_cache(maxsize=_ROWS)
def _step_row(milliseconds: str, cells: PhaseCells | None, shape: Shape, ink: Ink) -> Row:
    head = [Segment("step ", ink["label"]), figure(milliseconds, ink, "bold value"), Segment(" ms ", ink["label"])]
    if cells is None:
        return _edged([*head, Segment(units.DASH, ink["faint"])], shape, ink)
    return _edged([*head, *phase_row(cells, max(0, shape.width - 19), ink)], shape, ink)


def _looks(looks: ByLooks | None, shape: Shape, ink: Ink) -> Row:
    return _edged([Segment("by looks ", ink["label"]), *looks_bar(looks, shape.width - 13, ink)], shape, ink)


def _place(looks: ByLooks | None, shape: Shape, ink: Ink) -> Row:
    """Return the line on which a rank stands, or is found most often."""
    return _edged(
        [Segment(units.shorten(place_of_looks(looks), shape.width - 4), ink[hue_of_looks(looks)])], shape, ink
    )


def part_of(looks: ByLooks | None, phase: str) -> float | None:
    """Return the part of its time that a rank is in a phase; None where nobody has looked."""
    return None if looks is None or not looks.looks else looks.shares.get(phase, 0.0)


def hue_of_looks(looks: ByLooks | None) -> str:
    """Return the name of the hue of the line on which a rank is."""
    if looks is None or looks.problem:
        return "faint" if looks is None else "level-warning"
    return "bold state-stalled" if looks.still_s is not None else "label"


def _amounts(rank: RankFrame) -> _Amounts:
    if rank.known_by == OUTSIDE:
        parts = [(each, letter, part_of(rank.by_looks, each)) for each, letter in letters_of({}).items()]
        return tuple(
            [(each, letter, units.percent(None if part is None else 100 * part)) for each, letter, part in parts]
        )
    known = rank.phases_ms or {}
    return tuple(
        [(phase, letter, units.short_milliseconds(known.get(phase))) for phase, letter in letters_of(known).items()]
    )


@lru_cache(maxsize=_ROWS)
def _legend(amounts: _Amounts, shape: Shape, ink: Ink) -> list[Row]:
    inner = shape.width - 4
    # A number stands next to its own letter, with what room there is after it.
    each = max(5, (inner + 1) // len(amounts))
    row: Row = []
    end = 0
    for index, (phase, letter, amount) in enumerate(amounts):
        text = amount.strip()
        # A long number takes the cell before it, and then what its neighbors leave.
        lead = " " if len(text) + 3 <= each else ""
        gap = max(bool(index), index * each - end)
        row += [Segment(" " * gap), Segment(letter, ink.block(phase)[0]), Segment(lead), figure(text, ink)]
        end += gap + 1 + len(lead) + len(text)
    return [_edged(row, shape, ink)]


@lru_cache(maxsize=_ROWS)
def _long_legend(amounts: _Amounts, shape: Shape, ink: Ink) -> list[Row]:
    inner = shape.width - 4
    each = inner // _IN_LINE
    names = 9 if each >= 16 else 8
    rows: list[Row] = []
    for index, (phase, letter, amount) in enumerate(amounts):
        if index % _IN_LINE == 0:
            rows.append([])
        # Between a name and its number there is a space.
        name = phase if len(phase) + (amount[0] != " ") <= names else phase[:5]
        cell = [
            Segment(letter, ink.block(phase)[0]),
            Segment(f" {name:<{names}}", ink["label"]),
            figure(amount, ink),
        ]
        rows[-1] += fitted(cell, each)
    return [_edged(row, shape, ink) for row in rows]


def _collective(rank: RankFrame, shape: Shape, ink: Ink) -> Row:
    calls = rank.collective_ms
    name = units.collective(calls.op)
    if rank.mechanism is None and calls.p50 is None and rank.step:
        unseen = "not seen: open the rank" if rank.communicated is not False else "no collective so far"
        return _collective_row(name, unseen, "", "", shape, ink)
    return _collective_row(name, "", units.milliseconds(calls.p50), units.milliseconds(calls.p99), shape, ink)


@lru_cache(maxsize=_ROWS)
def _collective_row(name: str, unseen: str, p50: str, p99: str, shape: Shape, ink: Ink) -> Row:
    label = ink["label"]
    if unseen:
        return _edged([Segment(f"{name} ", label), Segment(unseen, ink["faint"])], shape, ink)
    row = [Segment(f"{name} p50", label), figure(p50, ink), Segment("  p99", label), figure(p99, ink)]
    return _edged([*row, Segment(" ms", label)], shape, ink)


def _resources(rank: RankFrame, shape: Shape, ink: Ink) -> Row:
    label = "mem " if rank.memory_kind == "device" else "rss "
    kind, load = load_of(rank)
    return _resources_row(
        label, rank.memory_bytes, rank.memory_total_bytes, f"{kind} ", units.percent(load, 5), shape, ink
    )


@lru_cache(maxsize=_ROWS)
def _resources_row(
    label: str, used: int | None, total: int | None, kind: str, load: str, shape: Shape, ink: Ink
) -> Row:
    inner = shape.width - 4
    row = [Segment(label, ink["label"]), figure(units.size(used), ink)]
    # The load stands at the right edge, so that it is in one column over all panels.
    room = inner - 12 - 11
    if total and used is not None and room >= 5:
        named = f" of {units.size(total).strip()}" if room >= 20 else ""
        row.append(Segment(named, ink["label"]))
        row.append(Segment(" "))
        row += gauge(used / total, min(24, room - len(named) - 1), ink)
    return _edged(spread(row, [Segment(kind, ink["label"]), figure(load, ink)], inner), shape, ink)


def _identity(rank: RankFrame, frame: Frame, shape: Shape, ink: Ink) -> Row:
    # The header has what all ranks have in common.
    device = rank.device if frame.one_device is None else None
    host = rank.host if frame.one_host is None and not frame.hosts.several else None
    return _identity_row(rank.pid, device, host, shape, ink)


@lru_cache(maxsize=_ROWS)
def _identity_row(pid: int | None, device: str | None, host: str | None, shape: Shape, ink: Ink) -> Row:
    return _edged(_who(pid, device, host, shape.width - 4, ink), shape, ink)


def _who(pid: int | None, device: str | None, host: str | None, inner: int, ink: Ink) -> Row:
    known = [f"pid {pid}"] if pid is not None else []
    known += [f"{label} {text}" for label, text in (("device", device), ("host", host)) if text]
    return [Segment(units.shorten("  ".join(known), inner), ink["faint"])]
