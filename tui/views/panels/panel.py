"""One rank in one box of cells: a pure drawing, without widget, clock or state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment

from ddptop.tui.drawing import units
from ddptop.tui.drawing.bars import gauge, phase_bar, sparkline
from ddptop.tui.drawing.lines import Row, figure, fitted, spread, width_of
from ddptop.tui.drawing.theme import MARKS, Ink, letters_of
from ddptop.tui.model.diagnosis import hang
from ddptop.tui.model.frame import ENDED, Frame, RankFrame
from ddptop.tui.model.ranks.mesh import place_of

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


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a panel is, and whether it is the chosen one."""

    width: int
    height: int
    chosen: bool


def draw_panel(rank: RankFrame, frame: Frame, shape: Shape, ink: Ink) -> list[Row]:
    """Return the lines of a panel, border included, all as wide as it is."""
    inner = shape.width - 4
    if rank.state == "starting" and not rank.step:
        content = _starting(rank, frame, inner, ink)
    else:
        content = _stepping(rank, frame, inner, shape.height - 2, ink)
    left = _left_title(rank, frame, inner, ink)
    right = _right_title(rank, inner - 1 - width_of(left), ink)
    return _boxed(content, left, right, _below(rank, frame, inner, ink), shape, ink)


def _below(rank: RankFrame, frame: Frame, inner: int, ink: Ink) -> Row:
    """Return what stands in the lower edge: the host, where there are several."""
    host = frame.hosts.of(rank.rank) if frame.hosts.several else None
    if host is None:
        return []
    return [
        Segment(f" {units.shorten(host.host, inner - 2)} ", ink["bold state-silent" if host.is_unheard else "label"])
    ]


def _boxed(content: list[Row], left: Row, right: Row, below: Row, shape: Shape, ink: Ink) -> list[Row]:
    a, b, c, d, e, f, g = _HEAVY if shape.chosen else _ROUND
    line = ink["rank-chosen"] if shape.chosen else ink["rank-border"]
    inner = shape.width - 4
    gap = inner - width_of(left) - width_of(right)
    top = [Segment(a + b, line), *left, Segment(b * max(0, gap), line), *right, Segment(b + c, line)]
    rows = [fitted(top, shape.width)]
    edge, gap_cell = Segment(d, line), Segment(" ")
    for index in range(shape.height - 2):
        row = content[index] if index < len(content) else []
        rows.append([edge, gap_cell, *fitted(row, inner), gap_cell, edge])
    if below:
        rest = max(0, shape.width - 3 - width_of(below))
        rows.append(fitted([Segment(e + f, line), *below, Segment(f * rest + g, line)], shape.width))
    else:
        rows.append([Segment(e + f * (shape.width - 2) + g, line)])
    return rows


def _left_title(rank: RankFrame, frame: Frame, inner: int, ink: Ink) -> Row:
    hue = ink[f"bold state-{rank.state}"]
    row = [Segment(f" {rank.rank} ", ink["bold value"]), Segment(MARKS[rank.state], hue)]
    if rank.state != "running":
        row.append(Segment(f" {rank.state}", hue))
    mark, mark_hue = mark_of(rank, frame)
    row.append(Segment(f" {mark} " if mark else " ", ink[mark_hue]))
    place = place_of(rank.coordinates)
    if place and width_of(row) + cell_len(place) + 1 + _STEP <= inner:
        row.append(Segment(f"{place} ", ink["value"]))
    return row


def mark_of(rank: RankFrame, frame: Frame) -> tuple[str, str]:
    """Return what is wrong with this rank in particular, in a word or two, and the name of its hue."""
    if rank.state in ENDED:
        return "", "label"
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
    age: Row = []
    # A held rank's age says nothing that the header does not, and would move what stands still.
    if rank.state not in (*ENDED, "paused") and rank.step_age_s is not None:
        hue = ink["bold rank-slow" if rank.state == "stalled" else "label"]
        age = [Segment(f"{units.age(rank.step_age_s)} ago ", hue)]
    rows = ([Segment(f" step {step} ", ink["label"]), *age], [Segment(f" {step} ", ink["label"]), *age], age)
    return next((row for row in rows if width_of(row) <= room), [])


def _starting(rank: RankFrame, frame: Frame, inner: int, ink: Ink) -> list[Row]:
    since = None if frame.started_at is None else frame.at - frame.started_at
    doing = rank.activity or "waiting for the process"
    return [
        [Segment(units.shorten(doing, inner), ink["bold state-starting"])],
        [Segment(units.age(since).strip() + " since launch", ink["label"])] if since is not None else [],
        [],
        _identity(rank, frame, inner, ink),
        _resources(rank, inner, ink),
    ]


def _stepping(rank: RankFrame, frame: Frame, inner: int, room: int, ink: Ink) -> list[Row]:
    amounts = _amounts(rank)
    lines = -(-len(amounts) // _IN_LINE)
    tall = 2 if room >= 6 + lines else 1
    rows = [*_loss(rank, inner, tall, ink), *_step(rank, frame, inner, ink)]
    if room >= 5 + lines and inner >= 45:
        rows += _long_legend(amounts, inner, ink)
    else:
        rows.append(_legend(amounts, inner, ink))
    if rank.ended is not None:
        mark = [Segment(units.shorten(rank.ended, inner), ink[f"state-{rank.state}"])]
        return [*rows, _all_reduce(rank, ink), mark, _identity(rank, frame, inner, ink)]
    rows += [_all_reduce(rank, ink), _resources(rank, inner, ink)]
    if room >= 6:
        rows.append(_identity(rank, frame, inner, ink))
    return rows


def _loss(rank: RankFrame, inner: int, tall: int, ink: Ink) -> list[Row]:
    broken = rank.loss is not None and not math.isfinite(rank.loss)
    head = [
        Segment("loss ", ink["label"]),
        figure(units.loss(rank.loss), ink, "bold level-error" if broken else "bold value"),
    ]
    course = sparkline(rank.losses, rank.step or 0, max(0, inner - 14), ink, tall)
    return [[*(head if index == 0 else [Segment(" " * 12)]), Segment("  "), *row] for index, row in enumerate(course)]


def _step(rank: RankFrame, frame: Frame, inner: int, ink: Ink) -> list[Row]:
    head = [
        Segment("step ", ink["label"]),
        figure(units.milliseconds(rank.current_step_ms), ink, "bold value"),
        Segment(" ms ", ink["label"]),
    ]
    width = max(0, inner - 15)
    if rank.phases_ms is None or rank.step_ms is None:
        return [[*head, Segment(units.DASH, ink["faint"])]]
    return [[*head, *phase_bar(rank.phases_ms, frame.step_ms or rank.step_ms, width, ink)]]


def _amounts(rank: RankFrame) -> _Amounts:
    known = rank.phases_ms or {}
    return tuple(
        [(phase, letter, units.short_milliseconds(known.get(phase))) for phase, letter in letters_of(known).items()]
    )


@lru_cache(maxsize=_ROWS)
def _legend(amounts: _Amounts, inner: int, ink: Ink) -> Row:
    # A number stands next to its own letter, with what room there is after it.
    each = max(5, (inner + 1) // len(amounts))
    lead = " " if each >= 6 else ""
    row: Row = []
    for phase, letter, amount in amounts:
        text = amount.strip()
        row += [Segment(letter, ink.block(phase)[0]), Segment(lead)]
        row.append(figure(text, ink))
        row.append(Segment(" " * (each - len(lead) - 1 - len(text))))
    return row


@lru_cache(maxsize=_ROWS)
def _long_legend(amounts: _Amounts, inner: int, ink: Ink) -> list[Row]:
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
    return rows


def _all_reduce(rank: RankFrame, ink: Ink) -> Row:
    if rank.mechanism is None and rank.allreduce_p50_ms is None and rank.step:
        said = "not seen: open the rank" if rank.communicated is not False else "no collective so far"
        return [Segment("all-reduce ", ink["label"]), Segment(said, ink["faint"])]
    return [
        Segment("all-reduce ", ink["label"]),
        Segment("p50", ink["label"]),
        figure(units.milliseconds(rank.allreduce_p50_ms), ink),
        Segment("  p99", ink["label"]),
        figure(units.milliseconds(rank.allreduce_p99_ms), ink),
        Segment(" ms", ink["label"]),
    ]


def load_of(rank: RankFrame) -> tuple[str, float | None]:
    """Return what the rank computes on, `cpu` or `gpu`, and its load in percent."""
    return ("cpu", rank.cpu_percent) if rank.device_percent is None else ("gpu", rank.device_percent)


def _resources(rank: RankFrame, inner: int, ink: Ink) -> Row:
    label = "mem " if rank.memory_kind == "device" else "rss "
    row = [Segment(label, ink["label"]), figure(units.size(rank.memory_bytes), ink)]
    total = rank.memory_total_bytes
    # The load stands at the right edge, so that it is in one column over all panels.
    room = inner - 12 - 11
    if total and rank.memory_bytes is not None and room >= 5:
        named = f" of {units.size(total).strip()}" if room >= 20 else ""
        row.append(Segment(named, ink["label"]))
        row.append(Segment(" "))
        row += gauge(rank.memory_bytes / total, min(24, room - len(named) - 1), ink)
    kind, load = load_of(rank)
    right = [Segment(f"{kind} ", ink["label"]), figure(units.percent(load, 5), ink)]
    return spread(row, right, inner)


def _identity(rank: RankFrame, frame: Frame, inner: int, ink: Ink) -> Row:
    # The header has what all ranks have in common.
    device = rank.device if frame.one_device is None else None
    host = rank.host if frame.one_host is None and not frame.hosts.several else None
    return _who(rank.pid, device, host, inner, ink)


@lru_cache(maxsize=_ROWS)
def _who(pid: int | None, device: str | None, host: str | None, inner: int, ink: Ink) -> Row:
    known = [f"pid {pid}"] if pid is not None else []
    known += [f"{label} {text}" for label, text in (("device", device), ("host", host)) if text]
    return [Segment(units.shorten("  ".join(known), inner), ink["faint"])]
