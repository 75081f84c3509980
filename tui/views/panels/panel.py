"""One rank in one box of cells: a pure drawing, without widget, clock or state."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from ddptop.agent.observer.model.ranks.mesh import place_of
from ddptop.tui.drawing import units
from ddptop.tui.drawing.bars import PhaseCells, gauge, phase_cells, phase_row, sparkline
from ddptop.tui.drawing.lines import Row, figure, fitted, spread, width_of
from ddptop.tui.drawing.theme import MARKS, Ink, letters_of
from ddptop.tui.model.diagnosis import hang
from ddptop.tui.model.frame import ENDED, Frame, RankFrame

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
    step = units.count(rank.step)
    age, hue = "", "label"
    # A held rank's age says nothing that the header does not, and would move what stands still.
    if rank.state not in (*ENDED, "paused") and rank.step_age_s is not None:
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
    rows = [_edged(row, shape, ink) for row in _loss(rank, inner, tall, ink)]
    rows.append(_step(rank, frame, shape, ink))
    rows += _long_legend(amounts, shape, ink) if room >= 5 + lines and inner >= 45 else _legend(amounts, shape, ink)
    rows.append(_collective(rank, shape, ink))
    if rank.ended is not None:
        rows.append(_edged([Segment(units.shorten(rank.ended, inner), ink[f"state-{rank.state}"])], shape, ink))
        return [*rows, _identity(rank, frame, shape, ink)]
    rows.append(_resources(rank, shape, ink))
    if room >= 6:
        rows.append(_identity(rank, frame, shape, ink))
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


def _amounts(rank: RankFrame) -> _Amounts:
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
        name = phase if len(phase) <= names else phase[:5]
        cell = [
            Segment(letter, ink.block(phase)[0]),
            Segment(f" {name:<{names}}", ink["label"]),
            figure(amount, ink),
        ]
        rows[-1] += fitted(cell, each)
    return [_edged(row, shape, ink) for row in rows]


def _collective(rank: RankFrame, shape: Shape, ink: Ink) -> Row:
    kind, p50, p99 = rank.collective
    name = units.collective(kind)
    if rank.mechanism is None and p50 is None and rank.step:
        unseen = "not seen: open the rank" if rank.communicated is not False else "no collective so far"
        return _collective_row(name, unseen, "", "", shape, ink)
    return _collective_row(name, "", units.milliseconds(p50), units.milliseconds(p99), shape, ink)


@lru_cache(maxsize=_ROWS)
def _collective_row(name: str, unseen: str, p50: str, p99: str, shape: Shape, ink: Ink) -> Row:
    label = ink["label"]
    if unseen:
        return _edged([Segment(f"{name} ", label), Segment(unseen, ink["faint"])], shape, ink)
    row = [Segment(f"{name} p50", label), figure(p50, ink), Segment("  p99", label), figure(p99, ink)]
    return _edged([*row, Segment(" ms", label)], shape, ink)


def load_of(rank: RankFrame) -> tuple[str, float | None]:
    """Return what the rank computes on, `cpu` or `gpu`, and its load in percent."""
    return ("cpu", rank.cpu_percent) if rank.device_percent is None else ("gpu", rank.device_percent)


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
