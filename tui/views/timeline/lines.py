"""The lines of a step's timeline: title, axis, two lines a rank, legend and details of the collectives. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from rich.segment import Segment
from rich.style import Style

from ddptop.agent.text import plural
from ddptop.agent.wire.frames import NO_HOSTS, HostFrames
from ddptop.agent.wire.hosts import HostFrame
from ddptop.tui.drawing import units
from ddptop.tui.drawing.lines import Row, packed, spread
from ddptop.tui.drawing.theme import LETTERS, Ink
from ddptop.tui.drawing.ticks import even_ticks
from ddptop.tui.views.timeline.spans import Bar, Lane, Timeline

WAITS: Final = "░"
MOVES: Final = "━"
UNSPLIT: Final = "─"
LAST: Final = "▼"
ENTERED: Final = "│"
UNKNOWN_WHEN: Final = "?"
"""Beside a rank whose clock is not compared with that of the others."""
UNSURE: Final = "┄"
"""Collectives of such a rank."""
_TICK_CELLS: Final = 12
_ROUND: Final = 1e-3
"""A step that is round but for this part of it has the ticks of the round one; its axis does not flicker."""
_ROOMY: Final = 100
"""Cells from which on there is room for whole sentences."""


class Position(NamedTuple):
    """The step that is shown, among those that are held."""

    back: int
    """Steps after it."""
    steps: int
    follows: bool


def title(line: Timeline, standing: Position, ranks: Collection[int], width: int, ink: Ink, turning: str) -> Row:
    """Return the step, its length and its standing among those held.

    Args:
        line: the step.
        standing: its standing.
        ranks: those that are shown.
        width: cells.
        ink: styles.
        turning: keys that show other steps.
    """
    missing = len(set(ranks).difference(lane.rank for lane in line.lanes))
    left: Row = [
        Segment(f" step {line.number:,}", ink["bold value"]),
        Segment(f"  {units.milliseconds(line.length / 1e6).strip()} ms", ink["value"]),
        Segment(" from the first to the last" if line.aligned and len(line.lanes) > 1 else "", ink["label"]),
        *([Segment(f"  {sure}", ink["label" if line.aligned else "level-warning"])] if (sure := clocks(line)) else []),
        Segment(f"  {missing:,} of {len(ranks):,} ranks have no record of it" if missing else "", ink["level-warning"]),
    ]
    where = "newest, follows" if standing.follows else f"{standing.back:,} back of {standing.steps:,} kept"
    return spread(left, [Segment(f"{where}  {turning} step ", ink["label"])], width)


def clocks(line: Timeline) -> str:
    """Return how sure the moments of several machines are: `clocks ±0.40 ms`; empty on one machine."""
    if not line.aligned:
        return "some clocks not compared"
    return f"clocks ±{line.error / 1e6:.2f} ms" if line.error else ""


def names_width(hosts: HostFrames, width: int) -> int:
    """Return the cells that the names of hosts take before the ranks, in so many."""
    if not hosts.several:
        return 0
    return 1 + min(max(len(host.host) for host in hosts), 16 if width >= _ROOMY else 8)


def name(host: HostFrame | None, room: int, ink: Ink) -> Segment:
    """Return the name of a host in `room` cells; nothing without a host."""
    if host is None or not room:
        return Segment(" " * room)
    hue = "bold state-silent" if host.is_unheard else "label"
    return Segment(f"{units.shorten(host.host, room - 1):<{room}}", ink[hue])


def axis(length: int, width: int, before: int, ink: Ink) -> Row:
    """Return ticks in ms, behind `before` cells for the ranks' numbers."""
    cells = [" "] * width
    for at in even_ticks(0.0, length / 1e6, max(1, width // _TICK_CELLS), _ROUND):
        column = cell(round(at * 1e6), length, width)
        text = f"│{at:g}" + (" ms" if not at else "")
        if column + len(text) <= width:
            cells[column : column + len(text)] = text
    return [Segment(" " * before), Segment("".join(cells), ink["label"])]


def cell(at: int, length: int, width: int) -> int:
    """Return the column of a moment."""
    return max(0, min(width, round(at / length * width))) if length > 0 else 0


def phases(lane: Lane, length: int, width: int, ink: Ink) -> Row:
    """Return a rank's phases as a bar with letters."""
    row: Row = []
    drawn = 0
    for span in lane.spans:
        begin, end = max(drawn, cell(span.begin, length, width)), cell(span.end, length, width)
        if end <= begin:
            continue
        first, rest = ink.block(span.phase)
        letter = LETTERS[span.phase]
        row += [Segment(" " * (begin - drawn)), Segment(letter, first), Segment(letter * (end - begin - 1), rest)]
        drawn = end
    return [segment for segment in row if segment.text]


def calls(lane: Lane, length: int, width: int, ink: Ink) -> Row:
    """Return a rank's collectives: waiting for the last rank, then the transfer.

    Where several are under way at a time, a transfer is shown over a wait.
    """
    cells: list[tuple[str, Style] | None] = [None] * width

    def paint(begin: int, end: int | None, sign: str, style: Style) -> None:
        first = min(width - 1, cell(begin, length, width))
        last = first + 1 if end is None else max(first + 1, cell(end, length, width))
        for column in range(first, min(width, last)):
            cells[column] = sign, style

    for bar in lane.bars:
        if bar.done is None:
            paint(bar.entered, None, ENTERED, ink["label"])
        elif bar.begun is None:
            sign = UNSPLIT if lane.compared else UNSURE
            paint(bar.entered, bar.done, sign, ink["transfer" if lane.compared else "faint"])
        elif bar.begun > bar.entered:
            paint(bar.entered, bar.begun, WAITS, ink["phase-wait"])
    for bar in lane.bars:
        if bar.begun is not None and bar.done is not None:
            paint(bar.begun, bar.done, MOVES, ink["transfer"])
    for bar in lane.bars:
        if bar.estimated and bar.begun is not None:
            paint(bar.begun, None, "~", ink["transfer"])
    for bar in lane.bars:
        if bar.last == lane.rank:
            paint(bar.entered, None, LAST, ink["bold rank-slow"])
    return list(Segment.simplify(Segment(*found) if found else Segment(" ") for found in cells))


def legend(line: Timeline, width: int, ink: Ink) -> Row:
    """Return the meaning of the signs, and what is assumed of the phases."""
    label = ink["label"]
    for_ = " for the last rank" if width >= _ROOMY else ""
    pieces: list[Row] = [
        [Segment(f" {WAITS}{WAITS}", ink["phase-wait"]), Segment(f" waits{for_}", label)],
        [Segment(MOVES * 2, ink["transfer"]), Segment(" transfer", label)],
        [Segment(LAST, ink["bold rank-slow"]), Segment(" came last", label)],
        [Segment("~", ink["transfer"]), Segment(" estimated", label)],
    ]
    if not line.aligned:
        text = f" {UNKNOWN_WHEN} clock not compared: begins at 0, nobody knows when"
        # The other signs are there only where something is compared.
        compared = sum(lane.compared for lane in line.lanes) > 1
        pieces = [[Segment(text, ink["level-warning"])], *(pieces if compared else [])]
    lengths = "lengths measured, " if width >= _ROOMY else ""
    pieces.append([Segment(f"phases: {lengths}order assumed", label)])
    return packed(pieces, width)


def details(
    line: Timeline,
    lane: Lane | None,
    rank: int,
    room: int,
    width: int,
    ink: Ink,
    hosts: HostFrames = NO_HOSTS,
) -> list[Row]:
    """Return the details of the longest collectives of a rank's step, in at most `room` lines."""
    if room <= 0:
        return []
    if lane is None or not lane.bars:
        what = "has no record of this step" if lane is None else "called no collective in this step that was seen"
        return [[Segment(units.shorten(f" rank {rank} {what}", width), ink["label"])]]
    shown = lane.bars
    rows: list[Row] = [_heading(rank, min(len(shown), room - 1), len(shown), width, ink)]
    if len(shown) > room - 1:
        longest = sorted(shown, key=lambda bar: bar.entered - (bar.done or bar.entered))[: room - 1]
        shown = tuple(sorted(longest, key=lambda bar: bar.index))
    return [*rows, *(_detail(line, lane, bar, width, ink, hosts) for bar in shown)][:room]


def _heading(rank: int, shown: int, number: int, width: int, ink: Ink) -> Row:
    # Those that are left out are the shortest.
    text = f" rank {rank}: {f'{shown} of ' if shown < number else ''}{plural(number, 'call')}"
    # The first title stands at the right of its column, and leaves half of that.
    cells = _name_width(width) + 4
    columns = f"{'size':>4} {'called at':>9} {'waited':>9} {'transfer':>10}  last to come"
    return [
        Segment(units.fit(text, cells), ink["bold rank-chosen"]),
        Segment(units.shorten(columns, max(1, width - cells)), ink["label"]),
    ]


def _name_width(width: int) -> int:
    return 26 if width >= _ROOMY else 19


def _detail(line: Timeline, lane: Lane, bar: Bar, width: int, ink: Ink, hosts: HostFrames) -> Row:
    known = bar.begun is not None and bar.done is not None
    waited = (bar.begun - bar.entered) / 1e6 if bar.begun is not None else None
    moved = (bar.done - bar.begun) / 1e6 if bar.begun is not None and bar.done is not None else None
    mark = "~" if bar.estimated else " "
    row: Row = [
        Segment(units.fit(f" {bar.index:>3} {bar.call.op}", _name_width(width)), ink["value"]),
        Segment(f"{units.size(bar.call.bytes):>8} ", ink["value"]),
        Segment(f"{units.milliseconds((bar.entered - lane.begin) / 1e6)} ms ", ink["value"]),
    ]
    if known:
        row.append(Segment(f"{units.milliseconds(waited)} ms ", ink["phase-wait"]))
        row.append(Segment(f"{mark}{units.milliseconds(moved)} ms", ink["transfer"]))
    else:
        whole = None if bar.done is None else (bar.done - bar.entered) / 1e6
        row.append(
            Segment(
                f"{units.milliseconds(whole)} ms in all{' ~' if bar.estimated else ''}, not to be split", ink["label"]
            )
        )
    later = line.spread(bar)
    if bar.last is not None and later is not None:
        after = " after the first" if width >= _ROOMY else ""
        host = hosts.name_of(bar.last) if width >= _ROOMY else ""
        row.append(Segment(f"  rank {bar.last}{f' ({host})' if host else ''}", ink["bold rank-slow"]))
        row.append(Segment(f" by {units.milliseconds(later / 1e6).strip()} ms{after}", ink["label"]))
    return row
