"""All that the page says of a run, and the page."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import jinja2
import numpy as np

from ddptop.agent import wire
from ddptop.agent.client import look
from ddptop.agent.client.comparison.compared import Comparison
from ddptop.agent.client.frame import Frame
from ddptop.agent.client.history.columns import Columns
from ddptop.agent.client.host.program import VERSION
from ddptop.agent.client.runs import Record, Run
from ddptop.agent.client.watch import Watch
from ddptop.agent.text import in_ms, plural, size, span
from ddptop.agent.wire.frames import ENDED
from ddptop.agent.wire.report import Report
from ddptop.tui.cli.output.html import curves, plots
from ddptop.tui.cli.output.html.curves import PHASES, Floats
from ddptop.tui.cli.output.html.plots import Key, Mark, Plot, Shape
from ddptop.tui.drawing.units import clock, date
from ddptop.tui.model.comparison import changed, value
from ddptop.tui.model.diagnosis import report as reports

MOST_LINES: Final = 16
"""Ranks with a line of their own in a plot; of more there is the range, and the slowest one."""
MOST_ROWS: Final = 16
"""Ranks in sight; the others are folded away."""
MOST_FOLDED: Final = 512
MOST_TOLD: Final = 500
"""Events and verdicts on the page."""
BAR: Final = 220.0
"""Width of a rank's bar."""
_MARKS: Final = {"mark-warning": "a verdict stood", "mark-error": "it hung", "mark-restart": "restarted"}
_GOOD: Final = frozenset({"finished", "stopped", "running", "paused"})


class Card(NamedTuple):
    """One number at the top."""

    label: str
    value: str
    note: str = ""


class Told(NamedTuple):
    """One line of the story."""

    at: str
    level: str
    text: str
    more: str = ""
    """What is known besides: the line of code, how long it lasted."""


class Row(NamedTuple):
    """One rank."""

    rank: int
    host: str
    state: str
    step: str
    step_ms: str
    own_ms: str
    bar: Sequence[tuple[float, float, str]]
    memory: str
    end: str
    is_odd: bool


def write(run: Run, who: str, file: Path, comparison: Comparison | None = None) -> list[str]:
    """Write the page on a run; return a line on each part of its record that cannot be read.

    Raises:
        OSError: it cannot be written.
        RunDirError: there is no such run.
    """
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    content = page(run, who, comparison)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        partial.write_text(content, encoding="utf-8")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return run.lacks()


def page(run: Run, who: str, comparison: Comparison | None = None) -> str:
    """Return the page on a run."""
    with Watch(run, who, looks_back=True) as watch:
        frame = look.heard([watch])[0]
        return rendered(frame, run.record(), run.report(), run.happened(), curves.read(watch), comparison)


def rendered(
    frame: Frame,
    record: Record,
    report: Report,
    happened: Sequence[wire.Event | wire.Verdict],
    numbers: Mapping[str, Columns],
    comparison: Comparison | None = None,
) -> str:
    """Return the page on what is known of a run."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    facts, blocks = _end(report)
    told, left_out = _story(happened)
    rows, folded, more_ranks = _rows(frame, numbers)
    return environment.get_template("page.html").render(
        run=frame.run, program=frame.program, state=frame.state, is_good=frame.state in _GOOD,
        head=reports.head(report), cards=_cards(frame, record, numbers), facts=facts, blocks=blocks,
        comparison=comparison, compared=_compared(comparison),
        plots=_plots(frame, happened, numbers), rows=rows, folded=folded, more_ranks=more_ranks, bar=BAR,
        phases=[Key(f"phase-{name}", name) for name in PHASES if name in numbers],
        told=told, left_out=left_out, environment=_environment(frame, record, report),
        made=date(time.time()), version=VERSION, shape=plots,
    )  # fmt: skip


def _compared(found: Comparison | None) -> list[tuple[str, str, str, str]]:
    """Return the rows of a comparison: a number, that of the other run, this one's, and the change."""
    return [
        (each.label, value(each.first, each.unit), value(each.second, each.unit), changed(each.change) or each.note)
        for each in (() if found is None else found.numbers)
        if each.first is not None or each.second is not None
    ]


def _cards(frame: Frame, record: Record, numbers: Mapping[str, Columns]) -> list[Card]:
    began, ended = record.created_at_ns / 1e9, frame.ended_at or (frame.at if frame.state not in ENDED else None)
    step = curves.mean_of(numbers["step"]) if "step" in numbers else np.array([np.nan])
    memory = [rank.memory_bytes for rank in frame.ranks if rank.memory_bytes is not None]
    hosts = {rank.host for rank in frame.ranks if rank.host}
    several = plural(len(hosts), "host") if len(hosts) > 1 else ""
    unsure = "~" if frame.is_loss_unsure else ""
    cards = (
        Card("steps", "–" if frame.step is None else f"{frame.step:,}", f"of {frame.total_steps or 0:,}"),
        Card("time", "" if ended is None else span(max(0.0, ended - began)), f"from {clock(began)} on"),
        Card("a step", in_ms(float(np.nanmedian(step))) if np.isfinite(step).any() else "", "median of the ranks"),
        Card("samples", "" if frame.samples_per_s is None else f"{frame.samples_per_s:,.0f}", "a second"),
        Card("MFU", "" if frame.mfu is None else f"{100 * frame.mfu:.0f} %", "of the peak"),
        Card("loss", "" if frame.loss is None else f"{unsure}{frame.loss:.4g}", "the last one"),
        Card("memory", size(max(memory)) if memory else "", "of the fullest rank"),
        Card("ranks", f"{frame.world:,}", " · ".join(filter(None, (several, frame.backend, frame.device)))),
        Card("restarts", f"{frame.generation:,}" if frame.generation else "", "of the group"),
    )
    return [card._replace(note="") if card.note == "of 0" else card for card in cards if card.value]


def _end(report: Report) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the facts on the end of a run, and what stands there as it was printed, each with its heading."""
    facts: list[tuple[str, str]] = []
    blocks: list[tuple[str, list[str]]] = []
    for each in reports.summary(report):
        if each.is_heading:
            blocks.append((each.text, []))
        elif blocks:
            blocks[-1][1].append(each.text)
        else:
            facts.append((each.label, each.text))
    blocks += [(f"last output of rank {rank.rank}", list(rank.output)) for rank in report.ranks if rank.output]
    return facts, [(title, "\n".join(lines)) for title, lines in blocks]


def _story(happened: Sequence[wire.Event | wire.Verdict]) -> tuple[list[Told], int]:
    """Return what happened, oldest first, and how much of it is left out: what is no warning, the oldest first."""
    left_out = max(0, len(happened) - MOST_TOLD)
    droppable = [index for index, each in enumerate(happened) if each.level == "info"]
    dropped = {*droppable[:left_out], *range(max(0, left_out - len(droppable)))}
    told: list[Told] = []
    day = ""
    for index, each in enumerate(happened):
        if index in dropped:
            continue
        at = (each.at_ns if isinstance(each, wire.Event) else each.told_at_ns) / 1e9
        of_day = date(at).rpartition(" ")[0]
        shown = clock(at) if of_day == day else f"{of_day} {clock(at)}"
        day = of_day
        if isinstance(each, wire.Verdict):
            told.append(Told(shown, each.level, each.ageless, _about(each)))
        else:
            by = f"by {each.who}" if each.who and each.who not in each.text else ""
            told.append(Told(shown, each.level, each.text, by))
    return told, len(dropped)


def _about(verdict: wire.Verdict) -> str:
    """Return what else is known of a verdict: its line of code, its cause, and how long it lasted."""
    lines = [verdict.line, verdict.cause]
    if (hang := verdict.hang) is not None:
        lines += [hang.where, hang.waiting and f"the others in {hang.waiting}"]
    if verdict.until_at_ns is not None:
        lines.append(f"for {span((verdict.until_at_ns - verdict.since_at_ns) / 1e9)}")
    return " · ".join(line for line in lines if line and line not in verdict.ageless)


def _rows(frame: Frame, numbers: Mapping[str, Columns]) -> tuple[list[Row], list[Row], int]:
    """Return the rows of the ranks that have failed or take longest, those of others, and how many more there are."""
    means = {name: curves.mean_of(columns) for name, columns in numbers.items()}
    unknown = np.full(frame.world, np.nan)
    step, wait = means.get("step", unknown), means.get("wait", unknown)
    own = step - np.where(np.isfinite(wait), wait, 0.0)
    most = float(np.nanmax(step)) if np.isfinite(step).any() else 0.0
    # Where the first cause is known, the others only followed.
    ended = {"silent"} if frame.cause_rank is not None else {"failed", "lost", "silent"}
    odd = {rank.rank for rank in frame.ranks if rank.state in ended or rank.health or rank.rank == frame.cause_rank}
    order = sorted(range(len(frame.ranks)), key=lambda rank: (rank not in odd, -np.nan_to_num(own[rank])))

    def row(number: int) -> Row:
        rank = frame.ranks[number]
        parts = [(f"phase-{name}", float(means[name][number])) for name in PHASES if name in means]
        return Row(
            rank.rank, rank.host or "", rank.state, "–" if rank.step is None else f"{rank.step:,}",
            _ms(step[number]), _ms(own[number]), plots.bar(parts, BAR, most),
            "–" if rank.memory_bytes is None else size(rank.memory_bytes),
            "; ".join(filter(None, (rank.health, rank.ended))), number in odd,
        )  # fmt: skip

    shown, folded = order[:MOST_ROWS], order[MOST_ROWS:][:MOST_FOLDED]
    left = len(order) - len(shown) - len(folded)
    return [row(number) for number in sorted(shown)], [row(number) for number in sorted(folded)], left


def _ms(value: float) -> str:
    return in_ms(float(value)) if np.isfinite(value) else "–"


def _plots(frame: Frame, happened: Sequence[wire.Event | wire.Verdict], numbers: Mapping[str, Columns]) -> list[Plot]:
    found: list[tuple[Plot, Columns]] = []
    if (steps := numbers.get("step")) is not None:
        marks = _marks(happened, steps)
        found.append((_of_ranks("Time of a step", "ms", steps, steps.mean, from_zero=True, marks=marks), steps))
        found.append((_phases(numbers), steps))
    if (loss := numbers.get("loss")) is not None:
        found.append((_of_all("Loss", "", loss), loss))
    if (memory := numbers.get("memory")) is not None:
        unit, scale = ("GiB", 2**30) if np.nanmax(memory.mean) >= 2**32 else ("MiB", 2**20)
        found.append((_of_ranks("Memory", unit, memory, memory.mean / scale, from_zero=False), memory))
    for plot, columns in found:
        axes = plots.Axes(columns.steps, 0.0, 1.0)
        plot.marks += [
            Mark(axes.x(each.step), 1.5, "mark-restart", f"restarted as a whole after step {each.step:,}")
            for each in frame.restarts
        ]
        kinds = {mark.kind for mark in plot.marks}
        plot.keys += [Key(kind, meaning) for kind, meaning in _MARKS.items() if kind in kinds]
    return [plot for plot, _ in found]


def _marks(happened: Sequence[wire.Event | wire.Verdict], columns: Columns) -> list[Mark]:
    """Return where verdicts stood."""
    axes = plots.Axes(columns.steps, 0.0, 1.0)
    found = []
    for each in happened:
        if isinstance(each, wire.Verdict) and each.level != "info":
            since = curves.step_at(columns, each.since_at_ns / 1e9)
            until = None if each.until_at_ns is None else curves.step_at(columns, each.until_at_ns / 1e9)
            if since is not None:
                begin, end = axes.x(since), axes.x(axes.last if until is None else until)
                found.append(Mark(begin, max(2.0, end - begin), f"mark-{each.level}", each.ageless))
    return found[-MOST_TOLD:]


def _of_ranks(
    title: str, unit: str, columns: Columns, table: Floats, *, from_zero: bool, marks: Sequence[Mark] = ()
) -> Plot:
    """Return a plot with a line for each rank; of many ranks with their range, and the rank that has most."""
    steps = columns.steps
    axes = plots.axes_for(steps, table, from_zero=from_zero)
    plot = Plot(title, unit, _beyond(axes, table, unit), x_ticks=axes.x_ticks(), y_ticks=axes.y_ticks())
    plot.marks += marks
    if len(table) <= MOST_LINES:
        for rank, values in enumerate(table):
            plot.shapes.append(Shape(plots.line(axes, steps, values), f"line hue-{rank % 8}"))
            plot.keys.append(Key(f"hue-{rank % 8}", f"rank {rank}"))
        return plot
    low, high = (curves.over_ranks(table, of) for of in (np.min, np.max))
    sums = np.nansum(table, axis=1)
    most = int(np.argmax(sums))
    plot.shapes += [
        Shape(plots.band(axes, steps, low, high), "band hue-0"),
        Shape(plots.line(axes, steps, curves.over_ranks(table, np.median)), "line hue-0"),
        Shape(plots.line(axes, steps, table[most]), "line hue-1"),
    ]
    plot.keys += [Key("hue-0", f"median and range of {len(table):,} ranks"), Key("hue-1", f"rank {most}, the most")]
    return plot


def _of_all(title: str, unit: str, columns: Columns) -> Plot:
    """Return a plot of the mean over ranks, with the range of all steps."""
    steps = columns.steps
    mean, low, high = (
        curves.over_ranks(table, of)
        for table, of in ((columns.mean, np.mean), (columns.low, np.min), (columns.high, np.max))
    )
    axes = plots.axes_for(steps, mean, low, high, from_zero=False)
    infinite = np.isposinf(columns.mean).any(axis=0)
    note = f"not finite from step {steps[infinite][0]:,.0f} on" if infinite.any() else ""
    return Plot(
        title, unit, note, [
            Shape(plots.band(axes, steps, low, high), "band hue-0"),
            Shape(plots.line(axes, steps, mean), "line hue-0"),
        ],
        keys=[Key("hue-0", "mean of the ranks, and the range of all steps")],
        x_ticks=axes.x_ticks(), y_ticks=axes.y_ticks(),
    )  # fmt: skip


def _phases(numbers: Mapping[str, Columns]) -> Plot:
    """Return a plot of the phases, mean over ranks, one upon the other."""
    steps = numbers["step"].steps
    names = [name for name in PHASES if name in numbers]
    means = [curves.over_ranks(numbers[name].mean, np.mean) for name in names]
    tops = np.cumsum([np.nan_to_num(mean) for mean in means], axis=0) if means else np.empty((0, len(steps)))
    known = np.isfinite(curves.over_ranks(numbers["step"].mean, np.mean))
    axes = plots.axes_for(steps, tops[-1:] if len(tops) else np.empty(0), from_zero=True)
    plot = Plot("Phases of a step, mean of the ranks", "ms", x_ticks=axes.x_ticks(), y_ticks=axes.y_ticks())
    below = np.zeros(len(steps))
    for name, top in zip(names, tops, strict=True):
        edges = (np.where(known, edge, np.nan) for edge in (below, top))
        plot.shapes.append(Shape(plots.band(axes, steps, *edges), f"area phase-{name}"))
        plot.keys.append(Key(f"phase-{name}", name))
        below = top
    return plot


def _beyond(axes: plots.Axes, table: Floats, unit: str) -> str:
    """Return a word on values that are beyond the axis; empty where none is."""
    known = table[np.isfinite(table)]
    if not len(known) or axes.y(float(known.max())) > plots.TOP:
        return ""
    return f"cut at the top: up to {known.max():,.0f} {unit}"


def _environment(frame: Frame, record: Record, report: Report) -> list[tuple[str, str]]:
    hosts = sorted({rank.host for rank in frame.ranks if rank.host})
    facts: list[tuple[str, Any]] = [
        ("command", report.launched_as),
        ("folder", record.cwd),
        ("started", f"{date(record.created_at_ns / 1e9)}{f' by {record.launched_by}' if record.launched_by else ''}"),
        ("ranks", ", ".join(filter(None, (plural(frame.world, "rank"), frame.backend, frame.device)))),
        ("placement", frame.placement),
        ("hosts", ", ".join(hosts[:64]) + (f" and {len(hosts) - 64:,} more" if len(hosts) > 64 else "")),
        ("versions", ", ".join(f"{name} {version}" for name, version in report.versions.items())),
        ("variables", " ".join(f"{name}={value}" for name, value in record.environment.items())),
        ("injected", report.injected),
        ("note", frame.note),
        ("run", record.run_id),
    ]
    return [(label, str(value)) for label, value in facts if value]
