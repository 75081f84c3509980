"""The columns of the table, each with its title, width, order and drawing.

Pure: knows frames and ink, and draws bars, figures and marks with the functions that panels draw
with; knows no terminal and holds no widget.  Every cell has its column's width
whatever the number, so that nothing moves while numbers change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from rich.segment import Segment
from rich.style import Style

from ddptop.agent.client.frame import Frame
from ddptop.agent.wire.frames import ENDED, OUTSIDE, RankFrame
from ddptop.agent.wire.vocabulary.mesh import order_of, place_of
from ddptop.tui.drawing import units
from ddptop.tui.drawing.bars import looks_bar, phase_bar
from ddptop.tui.drawing.lines import Row, figure, fitted
from ddptop.tui.drawing.theme import LETTERS, MARKS, Ink
from ddptop.tui.model.metrics import OTHERS, TIMES, Metric, own_ms
from ddptop.tui.model.sentences import place_of_looks
from ddptop.tui.views.panels import hue_of_looks, mark_of, part_of
from ddptop.tui.views.table.grouping import natural

GAP: Final = 2
"""Cells between two columns."""
FRESH_S: Final = 2.0
"""A step no older than this is new: its age would change in every line of every frame and say nothing."""
_DIFFERS: Final = 0.15
"""Part of a step by which ranks differ in a phase before its column comes before others."""
_DIFFERENT: Final = 2
_UNKNOWN: Final = 20
"""Importance of such a column, and of one that would be empty."""
METRIC: Final = "metric:"
"""Begins the key of a column that the script made, with `ddptop.agent.log(name=value)`."""

Value = float | str | None
Draw = Callable[[RankFrame, Frame, Ink], Row]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: ranks are sorted by their `value`, and each is drawn in exactly `width` cells."""

    key: str
    title: str
    width: int
    meaning: str
    """For the dialog and the sorting line."""
    value: Callable[[RankFrame], Value]
    draw: Draw
    importance: int
    """Where there is no room for all, the column with the highest number goes first."""
    falling: bool = True
    """True where the largest comes first when it is sorted by this column."""
    usual: bool = True
    """Shown without being asked for."""
    left: bool = False
    """The title stands at the left."""


def _rank(rank: RankFrame, frame: Frame, ink: Ink) -> Row:
    return [Segment(f"{rank.rank:5}", ink["bold value"])]


def _mark(rank: RankFrame, frame: Frame, ink: Ink) -> Row:
    mark, hue = mark_of(rank, frame)
    return [Segment(mark[:1] or " ", ink[hue])]


def _state(rank: RankFrame, frame: Frame, ink: Ink) -> Row:
    hue = ink[f"state-{rank.state}" if rank.state == "running" else f"bold state-{rank.state}"]
    return [Segment(f"{MARKS[rank.state]} {rank.state:<8}", hue)]


def _age(rank: RankFrame, frame: Frame, ink: Ink) -> Row:
    if rank.state not in ENDED and rank.step_age_s is not None and rank.step_age_s < FRESH_S:
        return [Segment("now".rjust(6), ink["faint"])]
    hue = "bold state-stalled" if rank.state == "stalled" else "label"
    return [figure(units.age(None if rank.state in ENDED else rank.step_age_s), ink, hue)]


def _loss(rank: RankFrame, frame: Frame, ink: Ink) -> Row:
    broken = rank.loss is not None and not math.isfinite(rank.loss)
    return [figure(units.loss(rank.loss, unsure=rank.is_loss_unsure), ink, "bold level-error" if broken else "value")]


def _bar(rank: RankFrame, frame: Frame, ink: Ink) -> Row:
    if rank.by_looks is not None:
        return looks_bar(rank.by_looks, 20, ink)
    if rank.phases_ms is None or rank.step_ms is None:
        return [Segment(f"{units.DASH:<20}", ink["faint"])]
    return phase_bar(rank.phases_ms, frame.step_ms or rank.step_ms, 20, ink)


def _words(width: int, text: Callable[[RankFrame], str | None], hue: str = "label") -> Draw:
    return lambda rank, frame, ink: [figure(units.fit(text(rank) or units.DASH, width), ink, hue)]


def _column(metric: Metric) -> Column:
    """Return the column of a number."""
    value, cell, width = metric.value, metric.cell, metric.width

    def draw(rank: RankFrame, frame: Frame, ink: Ink) -> Row:
        return [figure(cell(value(rank)).rjust(width), ink)]

    drawn: Draw = _loss if metric.name == "loss" else _phase(metric) if metric.name in LETTERS else draw
    return Column(metric.key or metric.name, metric.column, width, metric.meaning, value, drawn, metric.importance)


def _phase(metric: Metric) -> Draw:
    def draw(rank: RankFrame, frame: Frame, ink: Ink) -> Row:
        verdict = frame.verdict
        blamed = verdict is not None and (verdict.rank, verdict.phase) == (rank.rank, metric.name)
        return [figure(metric.cell(metric.value(rank)), ink, "bold rank-slow" if blamed else "value")]

    return draw


def _count(key: str, title: str, width: int, meaning: str, importance: int, **others: bool) -> Column:
    value = attrgetter(key)
    return Column(
        key, title, width, meaning, value,
        lambda rank, frame, ink: [figure(units.count(value(rank)).rjust(width), ink)], importance, **others,
    )  # fmt: skip


def note_of(rank: RankFrame) -> str:
    """Return the one thing about a rank that is no number."""
    if rank.ended is not None:
        return rank.ended
    told = (rank.health, rank.fault and f"agent: {rank.fault}")
    return next((text for text in told if text), f"{rank.missed:,} steps missed" if rank.missed else "")


PLACE: Final = Column(
    "place", "place", 12, "coordinates on the device mesh", lambda rank: order_of(rank.coordinates),
    _words(12, lambda rank: place_of(rank.coordinates), "value"), 4, falling=False, left=True,
)  # fmt: skip
"""Only of runs whose scripts name the place of a rank on the device mesh."""

HOST: Final = Column(
    "host", "host", 14, "machine", lambda rank: natural(rank.host),
    _words(14, lambda rank: rank.host), 9, falling=False, left=True,
)  # fmt: skip

PLACE_OF_LOOKS: Final = Column(
    "at", "at", 30, "line on which it stands, or is found most often", lambda rank: place_of_looks(rank.by_looks),
    lambda rank, frame, ink: [
        Segment(units.fit(place_of_looks(rank.by_looks), 30), ink[hue_of_looks(rank.by_looks)])
    ],
    3, falling=False, left=True,
)  # fmt: skip
"""Only of runs that are seen from outside."""

_OF: Final = {metric.key or metric.name: metric.is_of for metric in (*TIMES, *OTHERS)}
"""By the key of a column, the runs that have it."""
_COLUMNS: Final = (
    Column("rank", "rank", 5, "rank number", lambda rank: rank.rank, _rank, 0, falling=False),
    Column(
        "mark", " ", 1, "◀ holds the group back, hangs, or died first; ! not finite", lambda rank: rank.rank, _mark, 0
    ),
    Column("state", "state", 10, "state", lambda rank: rank.state, _state, 0, falling=False, left=True),
    Column(
        "activity", "doing", 10, "what the main thread does", lambda rank: rank.activity,
        _words(10, lambda rank: rank.activity), 12, falling=False, left=True,
    ),
    _count("step", "step", 9, "steps completed", 1, falling=False),
    Column("age", "ago", 6, "time since the last step", lambda rank: rank.step_age_s, _age, 7),
    *(_column(metric) for metric in TIMES if metric.column),
    Column("bar", "phases", 20, "phases as a bar, to one scale", own_ms, _bar, 14, left=True),
    *(_column(metric) for metric in OTHERS if metric.column),
    HOST,
    Column(
        "device", "device", 7, "device", lambda rank: rank.device,
        _words(7, lambda rank: rank.device), 13, falling=False, usual=False, left=True,
    ),
    Column(
        "pid", "pid", 7, "number of the process", lambda rank: rank.pid,
        lambda rank, frame, ink: [figure((units.DASH if rank.pid is None else str(rank.pid)).rjust(7), ink)], 13,
        falling=False, usual=False,
    ),
    _count("missed", "missed", 7, "step records that did not arrive", 13, usual=False),
    Column(
        "note", "note", 24, "how it ended, or what is wrong with it", note_of,
        lambda rank, frame, ink: [
            Segment(units.fit(note_of(rank), 24), ink["label" if rank.state == "running" else f"state-{rank.state}"])
        ],
        10, left=True,
    ),
)  # fmt: skip


def _metric(name: str) -> Column:
    def draw(rank: RankFrame, frame: Frame, ink: Ink) -> Row:
        return [figure(units.number(rank.metrics.get(name)), ink)]

    meaning = f"{name}, logged by the script"
    return Column(METRIC + name, units.shorten(name, 9), 9, meaning, lambda rank: rank.metrics.get(name), draw, 9)


_SHORT: Final = {"all_gather": "ag", "reduce_scatter": "rs", "all_to_all": "aa"}
"""Begins the titles of latencies where they are not of all-reduces."""


def _named(column: Column, collective: str) -> Column:
    """Return a column of all-reduces as that of another collective."""
    meaning = column.meaning.replace("all-reduce", units.collective(collective))
    return replace(column, title=f"{_SHORT[collective]} {column.key}", meaning=meaning)


def columns_of(frame: Frame, *, grouped: bool = False) -> tuple[Column, ...]:
    """Return every column there is of a run, in the order in which they stand, the script's own last.

    Where ranks are `grouped` by host, its column has to be asked for.
    """
    known = [
        each
        for column in _COLUMNS
        if column.key not in _OF or _OF[column.key](frame)
        for each in _columns_for(column, frame, grouped=grouped)
    ]
    return (*known, *(_metric(name) for name in sorted(frame.logged)))


def _columns_for(column: Column, frame: Frame, *, grouped: bool) -> tuple[Column, ...]:
    """Return the columns that stand in the place of one of `_COLUMNS`."""
    match column.key:
        case "rank" if frame.placed:
            return column, PLACE
        case "host" if frame.hosts.several:
            # Where there are several it matters more; under the line of its host a rank need not have it.
            return (replace(column, importance=2, usual=not grouped),)
        case "step" | "step_ms" if frame.known_by == OUTSIDE and (column.key == "step_ms" or not frame.from_log):
            return (replace(column, importance=_UNKNOWN),)
        case key if key in LETTERS and frame.known_by == OUTSIDE:
            return (_share(column),)
        case "loss" if frame.known_by == OUTSIDE:
            # The line on which a rank stands says more.
            return (replace(column, importance=4),)
        case "note" if frame.known_by == OUTSIDE:
            return PLACE_OF_LOOKS, column
        case "p50" | "p99" if frame.collective in _SHORT:
            return (_named(column, frame.collective),)
        case "samples" if frame.tokens_per_s is not None:
            # Tokens are shown in their place.
            return (replace(column, usual=False),)
    return (column,)


def _share(column: Column) -> Column:
    """Return the column of a phase as that of its part of the time, by looks from outside."""

    def value(rank: RankFrame) -> float | None:
        return part_of(rank.by_looks, column.key)

    def draw(rank: RankFrame, frame: Frame, ink: Ink) -> Row:
        part, verdict = value(rank), frame.verdict
        blamed = verdict is not None and (verdict.rank, verdict.phase) == (rank.rank, column.key)
        text = units.percent(None if part is None else 100 * part)
        return [figure(text, ink, "bold rank-slow" if blamed else "value")]

    meaning = f"{column.key}, part of its time by looks from outside"
    return replace(column, meaning=meaning, value=value, draw=draw)


def wanted_of(columns: Sequence[Column], chosen: Collection[str] | None) -> list[Column]:
    """Return the columns of `chosen`, the usual ones where it is None."""
    return [column for column in columns if (column.usual if chosen is None else column.key in chosen)]


def placed(columns: Iterable[Column], ranks: Sequence[RankFrame], shown: Collection[str]) -> list[Column]:
    """Return the columns with the importance that they have for these ranks; `shown` are the keys of those shown now.

    A phase in which the ranks differ by a good part of a step comes before the others, a number that no rank has last.
    """
    # By looks from outside a phase is a part of one.
    whole = max((rank.step_ms or 0.0 for rank in ranks), default=0.0) or 1.0
    found = []
    for column in columns:
        importance = column.importance
        if column.key in LETTERS:
            amounts = [float(column.value(rank) or 0.0) for rank in ranks]
            # One that is there stays until the difference is small: it is not to come and go with every frame.
            least = _DIFFERS / 2 if column.key in shown else _DIFFERS
            if amounts and max(amounts) - min(amounts) > least * whole:
                importance = _DIFFERENT
        if importance > _DIFFERENT and ranks and all(column.value(rank) is None for rank in ranks):
            importance = _UNKNOWN
        found.append(column if importance == column.importance else replace(column, importance=importance))
    return found


def fitting(
    columns: Sequence[Column], chosen: Collection[str] | None, width: int, named: str | None = None
) -> tuple[Column, ...]:
    """Return the wanted columns that `width` cells have room for.

    Args:
        columns: those that there are.
        chosen: keys of those that are wanted, None for the usual ones.
        width: cells that there are.
        named: the key of the column that the header speaks of, which comes right after state and step.
    """
    wanted = wanted_of(columns, chosen)
    kept: set[str] = set()
    left = width + GAP
    # What was asked for by name stays longer than what is there by itself.
    for column in sorted(wanted, key=lambda each: 1 if each.key == named or not each.usual else each.importance):
        if column.width + GAP > left:
            break
        left -= column.width + GAP
        kept.add(column.key)
    return tuple(column for column in wanted if column.key in kept)


def title_row(columns: Iterable[Column], by: str, *, falling: bool, ink: Ink) -> Row:
    """Return the titles; an arrow stands at the one that is sorted by."""
    row: Row = []
    for column in columns:
        hue = ink["label"]
        if column.key in LETTERS:
            hue = ink[f"phase-{column.key}"]
        title = units.shorten(column.title, column.width)
        text = title.ljust(column.width) if column.left else title.rjust(column.width)
        gap = " " * GAP
        if column.key == by:
            hue = ink["bold value"]
            gap = ("▼" if falling else "▲").ljust(GAP)
        row += [Segment(text, hue), Segment(gap, hue)]
    return row


def rank_row(rank: RankFrame, frame: Frame, columns: Iterable[Column], ink: Ink) -> Row:
    """Return one rank's row."""
    row: Row = []
    gap = Segment(" " * GAP, Style.null())
    for column in columns:
        row += [*fitted(column.draw(rank, frame, ink), column.width), gap]
    return row


def ordered(ranks: Sequence[RankFrame], among: Iterable[int], by: Column, *, falling: bool) -> list[int]:
    """Return the indices `among` ranks in the order of a column; ranks without a value come last."""
    known: list[tuple[float | str, int]] = []
    unknown: list[int] = []
    for index in among:
        value = by.value(ranks[index])
        if value is None or value == "" or value != value:
            unknown.append(index)
        else:
            known.append((value, index))
    # A stable sort: equal ranks keep their own order either way.
    known.sort(key=lambda pair: pair[0], reverse=falling)
    return [index for _, index in known] + unknown


def matches(rank: RankFrame, words: Iterable[str]) -> bool:
    """Say whether every word is found in a rank's host, state or activity, or begins its number or a coordinate."""
    text = f"{rank.host or ''} {rank.state} {rank.activity}".lower()
    numbers = (str(rank.rank), *place_of(rank.coordinates).lower().split("·"))
    return all(word in text or any(number.startswith(word) for number in numbers) for word in words)
