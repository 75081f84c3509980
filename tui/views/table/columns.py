"""The columns of the table, each with its title, width, order and drawing.

Pure: knows frames and ink, and draws bars, figures and marks with the functions that panels draw
with; knows no terminal and holds no widget.  Every cell has its column's width
whatever the number, so that nothing moves while numbers change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.segment import Segment
from rich.style import Style

from ddptop.agent.client.frame import Frame
from ddptop.agent.wire.frames import ENDED, RankFrame
from ddptop.agent.wire.mesh import order_of, place_of
from ddptop.tui.drawing import units
from ddptop.tui.drawing.bars import phase_bar
from ddptop.tui.drawing.lines import Row, figure, fitted
from ddptop.tui.drawing.theme import LETTERS, MARKS, Ink
from ddptop.tui.views.panels import load_of, mark_of
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


def own_ms(rank: RankFrame) -> float | None:
    """Return a rank's own time: its step without waiting for others."""
    wait = _amount(rank, "wait")
    step_ms = rank.current_step_ms
    return None if wait is None or step_ms is None else step_ms - wait


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
    if rank.phases_ms is None or rank.step_ms is None:
        return [Segment(f"{units.DASH:<20}", ink["faint"])]
    return phase_bar(rank.phases_ms, frame.step_ms or rank.step_ms, 20, ink)


def _figures(text: Callable[[RankFrame], str]) -> Draw:
    return lambda rank, frame, ink: [figure(text(rank), ink)]


def _words(width: int, text: Callable[[RankFrame], str | None], hue: str = "label") -> Draw:
    return lambda rank, frame, ink: [figure(units.fit(text(rank) or units.DASH, width), ink, hue)]


def _amount(rank: RankFrame, phase: str) -> float | None:
    return None if rank.phases_ms is None else rank.phases_ms.get(phase)


def _phase(phase: str, title: str, importance: int) -> Column:
    def draw(rank: RankFrame, frame: Frame, ink: Ink) -> Row:
        verdict = frame.verdict
        blamed = verdict is not None and (verdict.rank, verdict.phase) == (rank.rank, phase)
        return [figure(units.short_milliseconds(_amount(rank, phase)), ink, "bold rank-slow" if blamed else "value")]

    meaning = f"{phase} of a step, ms"
    return Column(phase, title, 4, meaning, lambda rank: _amount(rank, phase), draw, importance)


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

COPY: Final = _phase("copy", "copy", 5)
"""Only of runs on a device, to which batches are copied."""

TOKENS: Final = Column(
    "tokens", "tok/s", 6, "tokens a second", lambda rank: rank.tokens_per_s,
    _figures(lambda rank: units.rate(rank.tokens_per_s).rjust(6)), 11,
)  # fmt: skip
"""Of runs whose batches are known to be text, in the place of samples."""

MFU: Final = Column(
    "mfu", "MFU", 6, "work of the model as a part of the device's peak", lambda rank: rank.mfu,
    _figures(lambda rank: units.share(rank.mfu)), 9,
)  # fmt: skip
"""Of runs on devices whose peak is known."""

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
    Column(
        "step", "step", 9, "steps completed", lambda rank: rank.step,
        _figures(lambda rank: units.count(rank.step).rjust(9)), 1, falling=False,
    ),
    Column("age", "ago", 6, "time since the last step", lambda rank: rank.step_age_s, _age, 7),
    Column(
        "step_ms", "step ms", 7, "time of a step, ms", lambda rank: rank.current_step_ms,
        _figures(lambda rank: units.milliseconds(rank.current_step_ms).rjust(7)), 2,
    ),
    Column(
        "own", "own ms", 6, "a step without waiting for others, ms", own_ms,
        _figures(lambda rank: units.milliseconds(own_ms(rank))), 3,
    ),
    _phase("data", "data", 5),
    _phase("forward", "fwd", 5),
    _phase("backward", "bwd", 5),
    _phase("optimizer", "opt", 8),
    _phase("wait", "wait", 4),
    _phase("other", "oth", 9),
    Column(
        "bar", "phases", 20, "phases as a bar, to one scale", own_ms, _bar, 14, left=True,
    ),
    Column("loss", "loss", 7, "last loss", lambda rank: rank.loss, _loss, 3),
    Column(
        "p50", "ar p50", 6, "all-reduce latency, median, ms", lambda rank: rank.collective_ms.p50,
        _figures(lambda rank: units.milliseconds(rank.collective_ms.p50)), 11,
    ),
    Column(
        "p99", "ar p99", 6, "all-reduce latency, p99, ms", lambda rank: rank.collective_ms.p99,
        _figures(lambda rank: units.milliseconds(rank.collective_ms.p99)), 10,
    ),
    Column(
        "samples", "smpl/s", 6, "samples a second", lambda rank: rank.samples_per_s,
        _figures(lambda rank: units.rate(rank.samples_per_s).rjust(6)), 11,
    ),
    Column(
        "memory", "memory", 8, "memory of device or process", lambda rank: rank.memory_bytes,
        _figures(lambda rank: units.size(rank.memory_bytes)), 6,
    ),
    Column(
        "load", "load", 5, "load of the GPU, or CPU (100% is a core)", lambda rank: load_of(rank)[1],
        _figures(lambda rank: units.percent(load_of(rank)[1], 5)), 7,
    ),
    HOST,
    Column(
        "device", "device", 7, "device", lambda rank: rank.device,
        _words(7, lambda rank: rank.device), 13, falling=False, usual=False, left=True,
    ),
    Column(
        "pid", "pid", 7, "number of the process", lambda rank: rank.pid,
        _figures(lambda rank: (units.DASH if rank.pid is None else str(rank.pid)).rjust(7)), 13,
        falling=False, usual=False,
    ),
    Column(
        "missed", "missed", 7, "step records that did not arrive", lambda rank: rank.missed,
        _figures(lambda rank: units.count(rank.missed).rjust(7)), 13, usual=False,
    ),
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
    known = [each for column in _COLUMNS for each in _columns_for(column, frame, grouped=grouped)]
    return (*known, *(_metric(name) for name in sorted(frame.logged)))


def _columns_for(column: Column, frame: Frame, *, grouped: bool) -> tuple[Column, ...]:
    """Return the columns that stand in the place of one of `_COLUMNS`."""
    match column.key:
        case "rank" if frame.placed:
            return column, PLACE
        case "host" if frame.hosts.several:
            # Where there are several it matters more; under the line of its host a rank need not have it.
            return (replace(column, importance=2, usual=not grouped),)
        case "data" if "copy" in (frame.phases_ms or {}):
            return column, COPY
        case "p50" | "p99" if frame.collective in _SHORT:
            return (_named(column, frame.collective),)
        case "samples":
            rates = (column,) if frame.tokens_per_s is None else (TOKENS, replace(column, usual=False))
            return rates if frame.mfu is None else (*rates, MFU)
    return (column,)


def wanted_of(columns: Sequence[Column], chosen: Collection[str] | None) -> list[Column]:
    """Return the columns of `chosen`, the usual ones where it is None."""
    return [column for column in columns if (column.usual if chosen is None else column.key in chosen)]


def placed(columns: Iterable[Column], ranks: Sequence[RankFrame], shown: Collection[str]) -> list[Column]:
    """Return the columns with the importance that they have for these ranks; `shown` are the keys of those shown now.

    A phase in which the ranks differ by a good part of a step comes before the others, a number that no rank has last.
    """
    step_ms = max((rank.step_ms or 0.0 for rank in ranks), default=0.0)
    found = []
    for column in columns:
        importance = column.importance
        if column.key in LETTERS:
            amounts = [_amount(rank, column.key) or 0.0 for rank in ranks]
            # One that is there stays until the difference is small: it is not to come and go with every frame.
            least = _DIFFERS / 2 if column.key in shown else _DIFFERS
            if amounts and max(amounts) - min(amounts) > least * step_ms:
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
