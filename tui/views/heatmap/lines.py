"""The lines of a heatmap: its title, the cells, the axis of time, the legend, the values at the cursor. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.segment import Segment
from rich.style import Style

from ddptop.agent.wire.frames import NO_HOSTS, HostFrames
from ddptop.agent.wire.steps.numbers import WIDTHS_S
from ddptop.tui.drawing import units
from ddptop.tui.drawing.lines import Row, packed, spread, width_of
from ddptop.tui.drawing.theme import NOT_FINITE, SHADE_SIGNS, SHADES, Ink
from ddptop.tui.model.metrics import METRICS, Metric

if TYPE_CHECKING:
    from ddptop.tui.views.heatmap.cells import HeatCells

ABOVE: Final = 1
BELOW: Final = 3
"""Lines that are not the map: title, axis, legend and the values at the cursor."""
_TICK: Final = 20
_TICKS: Final = (1, 2, 5, 10, 15)
"""Buckets between two ticks, and fewer where a bucket has several cells."""
_APART: Final = 16
"""Cells between two ticks at least."""
BETWEEN: Final = "╌"
"""Fills the line between two hosts."""
_DIGITS: Final = "0123456789"
_MANY: Final = 20
"""Hosts from which on a row may be several of them."""
_LONGEST: Final = 16
_SHORTEST: Final = 8
"""Cells of a host's name at most, where there is room and where there is little."""
_ROOMY: Final = 100
"""Cells of a map with room."""


class Sight(NamedTuple):
    """The part of a run that is shown. Buckets are numbered from the epoch."""

    metric: Metric
    level: int
    newest: int
    """The newest bucket there is."""
    edge: int
    """The bucket at the right edge."""
    at: int
    """The bucket that the cursor is on."""
    width: int
    """Cells for buckets."""
    world: int
    chosen: int
    slow: int | None
    """The rank that the verdict names."""
    ended: bool
    unseen: bool
    """True where the chosen rank's collectives are not seen."""
    complete: bool
    """False while the numbers are awaited."""
    shaded: bool
    """True where the terminal has colors for a scale; else it is made of signs."""
    keys: Mapping[str, str]
    """The names of keys, by the id of their action."""
    hosts: HostFrames = NO_HOSTS
    before: int = 0
    """Cells for the names of hosts."""
    stepless: str = ""
    """Why no step is known, of a run that is seen from outside."""

    @property
    def seconds(self) -> int:
        """Width of a bucket."""
        return WIDTHS_S[self.level]


def gutter(world: int) -> int:
    """Return the cells that the ranks' numbers take at the left."""
    return len(str(max(0, world - 1))) + 3


def names_width(hosts: HostFrames, width: int) -> int:
    """Return the cells that the names of hosts take before those numbers, in a map of `width` cells."""
    if not hosts.several:
        return 0
    several = len(hosts) > _MANY
    longest = max(len(host.host) for host in hosts) + (4 if several else 0)
    return 1 + min(longest, _LONGEST if width >= _ROOMY else _SHORTEST + 4 if several else _SHORTEST)


def heat_row(heat: HeatCells | None, sight: Sight, line: int, width: int, ink: Ink) -> Row:
    """Return one line; line 0 is the first of the map, the one before is the title."""
    if heat is None:
        return []
    below = line - heat.bands.lines
    if line < 0:
        return _title(heat, sight, width, ink)
    if below < 0:
        return _cells(heat, sight, line, ink)
    if below == 0:
        return _axis(heat, sight, ink)
    if below == 1:
        return _legend(heat, sight, width, ink)
    return _reading(heat, sight, width, ink) if below == 2 else []


def marks(heat: HeatCells, sight: Sight, line: int) -> bool:
    """Say whether the chosen rank is on this line of the map."""
    return heat.band_of(sight.chosen) in heat.bands.of_line(line)


def _title(heat: HeatCells, sight: Sight, width: int, ink: Ink) -> Row:
    group = heat.bands.group
    what = f"{group} ranks" if heat.bands.shared == 1 else f"{heat.bands.shared} hosts"
    shared = f", the highest of {what} a row" if group > 1 else ""
    left: Row = [
        Segment(" " + sight.metric.title, ink["bold value"]),
        Segment(f", mean of {sight.seconds} s{shared}", ink["label"]),
    ]
    span = units.duration(heat.columns * sight.seconds)
    numbers = f"{sight.keys['heatmap.metric']}: {len(METRICS)} metrics"
    return spread(left, [Segment(f"{numbers}   {span} in sight ", ink["label"])], width)


def _cells(heat: HeatCells, sight: Sight, line: int, ink: Ink) -> Row:
    bands = heat.bands
    marked = marks(heat, sight, line)
    band = bands.of_line(line)[0]
    if band is None:
        return [Segment(BETWEEN * (sight.before + gutter(sight.world) + sight.width), ink["faint"])]
    number = sight.chosen if marked else heat.rank_at(bands.first(band))
    # The number stands once, at the first line of a thick band.
    begins = bands.begins_on(line)
    text = f"{'▸' if marked and begins else ' '}{number if begins else '':>{gutter(sight.world) - 3}}  "
    hue = "bold rank-slow" if sight.slow == number else "bold rank-chosen" if marked else "label"
    row: Row = [*_name(heat, sight, line, ink), Segment(text, ink[hue])]
    row.append(Segment(" " * (sight.width - heat.width)))
    column = heat.cell_of(sight.at)
    at = 0
    for length, upper, lower in heat.runs(line):
        sign, style = _look(upper, lower, sight, ink)
        if marked and at <= column < at + length:
            row.append(Segment(sign * (column - at), style))
            row.append(_pointed(heat, sight, line, (upper, lower), ink))
            row.append(Segment(sign * (at + length - column - 1), style))
        else:
            row.append(Segment(sign * length, style))
        at += length
    return [segment for segment in row if segment.text]


def _name(heat: HeatCells, sight: Sight, line: int, ink: Ink) -> Row:
    """Return the name of the host that begins on a line of the map, in the cells for names."""
    number, hosts = heat.bands.names.get(line), [host for host in sight.hosts if host.ranks]
    if number is None or not sight.before:
        return [Segment(" " * sight.before)]
    if number >= len(hosts):
        return [Segment(units.fit("?", sight.before), ink["faint"])]
    shared = min(heat.bands.shared, len(hosts) - number)
    unheard = any(host.is_unheard for host in hosts[number : number + shared])
    name = units.shorten(_range(hosts[number].host, hosts[number + shared - 1].host), sight.before - 1)
    return [Segment(f"{name:<{sight.before}}", ink["bold state-silent" if unheard else "label"])]


def _range(first: str, last: str) -> str:
    """Return two names as one: `node0-11`."""
    if first == last:
        return first
    stem = first.rstrip(_DIGITS)
    return f"{first}-{last.removeprefix(stem)}" if stem and last.startswith(stem) else f"{first}, …"


def _look(upper: int, lower: int, sight: Sight, ink: Ink) -> tuple[str, Style]:
    if sight.shaded:
        return ink.shades(upper, lower)
    if upper > len(SHADE_SIGNS):
        return NOT_FINITE, ink["bold level-error"]
    return (SHADE_SIGNS[upper - 1] if upper else " "), ink["value"]


def _pointed(heat: HeatCells, sight: Sight, line: int, shades: tuple[int, int], ink: Ink) -> Segment:
    """Return the cell that the cursor is on: the chosen rank's half of it has the cursor's color."""
    if not sight.shaded:
        return Segment(_look(*shades, sight, ink)[0], ink["bold rank-chosen"] + Style(reverse=True))
    upper, lower = (band == heat.band_of(sight.chosen) for band in heat.bands.of_line(line))
    if upper == lower:
        return Segment("█", ink["rank-chosen"])
    other = shades[1] if upper else shades[0]
    return Segment("▀" if upper else "▄", ink["rank-chosen"] + Style(bgcolor=ink.shades(other, other)[1].color))


def _axis(heat: HeatCells, sight: Sight, ink: Ink) -> Row:
    """Return the times below the columns, and a mark below the cursor."""
    before = sight.width - heat.width
    cells, column = [" "] * sight.width, before + heat.cell_of(sight.at)
    every = next((each for each in _TICKS if _fits(each, heat, sight.seconds)), _TICK)
    for back in range(0, heat.columns, every):
        text = _ago((sight.newest - sight.edge + back) * sight.seconds, "end" if sight.ended else "now")
        tick = before + heat.cell_of(sight.edge - back)
        cells[tick] = "│"
        # Its label stands at the side where the mark is not.
        begin = tick + 1 if tick - len(text) <= column < tick else tick - len(text)
        if 0 <= begin <= sight.width - len(text):
            cells[begin : begin + len(text)] = text
    line = "".join(cells)
    row = [Segment(" " * (sight.before + gutter(sight.world))), Segment(line[:column], ink["label"])]
    return [*row, Segment("▲", ink["bold rank-chosen"]), Segment(line[column + 1 :], ink["label"])]


def _fits(every: int, heat: HeatCells, seconds: int) -> bool:
    """Say whether there is room for a tick at every so many buckets, in whole minutes where buckets are longer."""
    return every * heat.width >= _APART * heat.columns and (seconds == 1 or every * seconds % 60 == 0)


def _legend(heat: HeatCells, sight: Sight, width: int, ink: Ink) -> Row:
    metric = sight.metric
    if heat.scale is None and not sight.complete:
        return [Segment(" loading history", ink["label"])]
    if heat.scale is None:
        blind = sight.unseen and metric.name in ("own", "wait")
        why = sight.stepless or ("collectives are not seen here" if blind else "no value in sight")
        text = f" {why}; {sight.keys['heatmap.metric']} shows another number"
        if not blind and not sight.stepless:
            text += f", {sight.keys['heatmap.zoom_out']} more time"
        return [Segment(units.shorten(text, width), ink["label"])]
    low, high = (metric.text(value).strip() for value in heat.scale)
    if sight.shaded:
        ramp = [Segment("█", ink[f"shade-{shade}"]) for shade in range(1, SHADES + 1)]
    else:
        ramp = [Segment(SHADE_SIGNS, ink["value"])]
    pieces: list[Row] = [[Segment(f" {low} ", ink["value"]), *ramp, Segment(f" {high} and more", ink["value"])]]
    if metric.name == "loss":
        pieces.append([Segment(NOT_FINITE, ink["bold level-error"]), Segment(" not finite", ink["label"])])
    if heat.longest is not None:
        pieces.append([Segment(f"scale without steps over {units.age(heat.longest / 1e3).strip()}", ink["label"])])
    pieces.append([Segment("blank: no step ended", ink["label"])])
    pieces.append([Segment("spans 90 % of the values in sight", ink["label"])])
    return packed(pieces, width, gap=3)


def _reading(heat: HeatCells, sight: Sight, width: int, ink: Ink) -> Row:
    """Return the values under the cursor as numbers."""
    metric = sight.metric
    value, step = heat.value(sight.chosen, sight.at), heat.step(sight.chosen, sight.at)
    text = units.DASH if value is None else metric.text(value).strip()
    back = (sight.newest - sight.at) * sight.seconds
    host = units.shorten(sight.hosts.name_of(sight.chosen), _LONGEST)
    when = f"{units.age(back).strip()} ago" if back else "end" if sight.ended else "now"
    pieces: list[Row] = [
        [Segment(f" ▸ rank {sight.chosen}{f' ({host})' if host else ''}", ink["bold rank-chosen"])],
        [Segment(text.rjust(9), ink["faint" if value is None else "bold value"])],
        [Segment(when, ink["value"])],
        [Segment("step ", ink["label"]), Segment(units.count(step), ink["value" if step is not None else "faint"])],
    ]
    worst = heat.worst(heat.band_of(sight.chosen), sight.at)
    if heat.bands.group > 1 and worst is not None and worst[0] != sight.chosen:
        highest = f"rank {worst[0]}: {metric.text(worst[1]).strip()}"
        pieces.append([Segment("highest in this row ", ink["label"]), Segment(highest, ink["value"])])
    row = packed(pieces, width)
    hint: Row = [Segment(f"arrows read, {sight.keys['ranks.open']} opens ", ink["label"])]
    return spread(row, hint, width) if width_of(row) + width_of(hint) < width else row


def _ago(seconds: int, zero: str) -> str:
    if seconds <= 0:
        return zero
    if seconds < 180:
        return f"-{seconds}s"
    return f"-{seconds // 60}m" if seconds < 10_800 else f"-{seconds / 3600:.1f}h"
