"""All that the page says of a run, and the page."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jinja2
import numpy as np

from ddptop.agent import wire
from ddptop.agent.client import look
from ddptop.agent.client.comparison.compared import PHASES, Comparison
from ddptop.agent.client.frame import Frame
from ddptop.agent.client.history.answers import Answers
from ddptop.agent.client.history.columns import Columns, mean_of_ranks
from ddptop.agent.client.host.program import VERSION
from ddptop.agent.client.runs import Mask, Record, Run, RunDirError
from ddptop.agent.client.watch import Watch
from ddptop.agent.text import in_ms, plural, size, span
from ddptop.agent.wire.frames import ENDED
from ddptop.agent.wire.report import Report
from ddptop.tui.cli.output.html import plots
from ddptop.tui.cli.output.html.plots import Plot, over_ranks
from ddptop.tui.drawing.units import clock, date
from ddptop.tui.model.comparison import rows
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
NUMBERS: Final = ("step", *PHASES, "loss", "memory")
COLUMNS: Final = 240
"""Columns of a plot."""
_MARKED: Final = {"warning": "a verdict stood", "error": "it hung"}
"""By level of a verdict, the meaning of its mark."""
_GOOD: Final = frozenset({"finished", "stopped", "running", "paused"})


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
        numbers: dict[str, Columns] = {}
        # Where there is no history to read, the page says the rest.
        with contextlib.suppress(RunDirError):
            answers = Answers(watch, frame.world)
            for name in NUMBERS if answers.last else ():
                columns = answers.columns(name, answers.first, answers.last, COLUMNS)
                if (columns.known > 0).any():
                    numbers[name] = columns
        return rendered(frame, run.record(), run.report(), run.happened(), numbers, run.mask(), comparison)


def rendered(
    frame: Frame,
    record: Record,
    report: Report,
    happened: Sequence[wire.Event | wire.Verdict],
    numbers: Mapping[str, Columns],
    mask: Mask,
    comparison: Comparison | None = None,
) -> str:
    """Return the page on what is known of a run, with a mask in place of its secrets."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: mask.line(value) if isinstance(value, str) else value,
    )
    facts, blocks = _end(report)
    told, left_out = _story(happened)
    ranks, folded, more_ranks = _ranks(frame, numbers)
    return environment.get_template("page.html").render(
        state=frame.state, is_good=frame.state in _GOOD,
        head=reports.head(report), cards=_cards(frame, record, numbers), facts=facts, blocks=blocks,
        comparison=comparison, compared=[] if comparison is None else rows(comparison),
        plots=_plots(frame, happened, numbers), ranks=ranks, folded=folded, more_ranks=more_ranks, bar=BAR,
        phases=[name for name in PHASES if name in numbers],
        told=told, left_out=left_out, environment=_environment(frame, record, report),
        made=date(time.time()), version=VERSION, shape=plots,
    )  # fmt: skip


def _cards(frame: Frame, record: Record, numbers: Mapping[str, Columns]) -> list[tuple[str, str, str]]:
    """Return the numbers at the top that are known: label, value and note."""
    began, ended = record.created_at_ns / 1e9, frame.ended_at or (frame.at if frame.state not in ENDED else None)
    step = plots.mean_of(numbers["step"]) if "step" in numbers else np.array([np.nan])
    memory = [rank.memory_bytes for rank in frame.ranks if rank.memory_bytes is not None]
    hosts = {rank.host for rank in frame.ranks if rank.host}
    several = plural(len(hosts), "host") if len(hosts) > 1 else ""
    unsure = "~" if frame.is_loss_unsure else ""
    of = f"of {frame.total_steps:,}" if frame.total_steps else ""
    cards = (
        ("steps", "–" if frame.step is None else f"{frame.step:,}", of),
        ("time", "" if ended is None else span(max(0.0, ended - began)), f"from {clock(began)} on"),
        ("a step", in_ms(float(np.nanmedian(step))) if np.isfinite(step).any() else "", "median of the ranks"),
        ("samples", "" if frame.samples_per_s is None else f"{frame.samples_per_s:,.0f}", "a second"),
        ("MFU", "" if frame.mfu is None else f"{100 * frame.mfu:.0f} %", "of the peak"),
        ("loss", "" if frame.loss is None else f"{unsure}{frame.loss:.4g}", "the last one"),
        ("memory", size(max(memory)) if memory else "", "of the fullest rank"),
        ("ranks", f"{frame.world:,}", " · ".join(filter(None, (several, frame.backend, frame.device)))),
        ("restarts", f"{frame.generation:,}" if frame.generation else "", "of the group"),
    )
    return [card for card in cards if card[1]]


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


def _story(happened: Sequence[wire.Event | wire.Verdict]) -> tuple[list[tuple[str, str, str, str]], int]:
    """Return what happened, oldest first: time, level, text and what is known besides; and how much is left out: what
    is no warning, the oldest first.
    """
    left_out = max(0, len(happened) - MOST_TOLD)
    droppable = [index for index, each in enumerate(happened) if each.level == "info"]
    dropped = {*droppable[:left_out], *range(max(0, left_out - len(droppable)))}
    told, before = list[tuple[str, str, str, str]](), ""
    for index, each in enumerate(happened):
        if index in dropped:
            continue
        if isinstance(each, wire.Verdict):
            at_ns, text, more = each.told_at_ns, each.ageless, _about(each)
        else:
            at_ns, text, more = each.at_ns, each.text, f"by {each.who}" if each.who not in each.text else ""
        day, _, shown = date(at_ns / 1e9).partition(" ")
        told.append((shown if day == before else f"{day} {shown}", each.level, text, more))
        before = day
    return told, len(dropped)


def _about(verdict: wire.Verdict) -> str:
    """Return what else is known of a verdict: its line of code, its cause, and how long it lasted."""
    lines = [verdict.line, verdict.cause]
    if (hang := verdict.hang) is not None:
        lines += [hang.where, hang.waiting and f"the others in {hang.waiting}"]
    if verdict.until_at_ns is not None:
        lines.append(f"for {span((verdict.until_at_ns - verdict.since_at_ns) / 1e9)}")
    return " · ".join(line for line in lines if line and line not in verdict.ageless)


def _ranks(frame: Frame, numbers: Mapping[str, Columns]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """Return the rows of the ranks that have failed or take longest, those of others, and how many more there are."""
    means = {name: plots.mean_of(columns) for name, columns in numbers.items()}
    unknown = np.full(frame.world, np.nan)
    step = means.get("step", unknown)
    own = step - np.nan_to_num(means.get("wait", unknown))
    most = float(np.nanmax(step)) if np.isfinite(step).any() else 0.0
    # Where the first cause is known, the others only followed.
    ended = {"silent"} if frame.cause_rank is not None else {"failed", "lost", "silent"}
    odd = {rank.rank for rank in frame.ranks if rank.state in ended or rank.health or rank.rank == frame.cause_rank}
    order = sorted(range(len(frame.ranks)), key=lambda rank: (rank not in odd, -np.nan_to_num(own[rank])))

    def row(number: int) -> dict[str, Any]:
        rank = frame.ranks[number]
        parts = [(f"phase-{name}", float(means[name][number])) for name in PHASES if name in means]
        return {
            "rank": rank.rank, "host": rank.host or "", "state": rank.state,
            "step": "–" if rank.step is None else f"{rank.step:,}",
            "step_ms": in_ms(float(step[number])) if np.isfinite(step[number]) else "–",
            "own_ms": in_ms(float(own[number])) if np.isfinite(own[number]) else "–",
            "bar": plots.bar(parts, BAR, most),
            "memory": "–" if rank.memory_bytes is None else size(rank.memory_bytes),
            "end": "; ".join(filter(None, (rank.health, rank.ended))), "is_odd": number in odd,
        }  # fmt: skip

    shown, folded = order[:MOST_ROWS], order[MOST_ROWS:][:MOST_FOLDED]
    left = len(order) - len(shown) - len(folded)
    return [row(number) for number in sorted(shown)], [row(number) for number in sorted(folded)], left


def _plots(frame: Frame, happened: Sequence[wire.Event | wire.Verdict], numbers: Mapping[str, Columns]) -> list[Plot]:
    found = list[Plot]()
    if (steps := numbers.get("step")) is not None:
        found += [_of_ranks("Time of a step", "ms", steps, 1.0, from_zero=True), _phases(numbers, steps)]
        _mark(found[0], steps, happened)
    if (loss := numbers.get("loss")) is not None:
        found.append(_of_all("Loss", loss))
    if (memory := numbers.get("memory")) is not None:
        unit, scale = ("GiB", 2**-30) if np.nanmax(memory.mean) >= 2**32 else ("MiB", 2**-20)
        found.append(_of_ranks("Memory", unit, memory, scale))
    for plot in found:
        for each in frame.restarts:
            text = f"restarted as a whole after step {each.step:,}"
            plot.mark("mark-restart", each.step, each.step, 1.5, text, "restarted")
    return found


def _mark(plot: Plot, columns: Columns, happened: Sequence[wire.Event | wire.Verdict]) -> None:
    """Mark where verdicts stood."""
    verdicts = [each for each in happened if isinstance(each, wire.Verdict) and each.level in _MARKED]
    for each in verdicts[-MOST_TOLD:]:
        since = plots.step_at(columns, each.since_at_ns / 1e9)
        until = None if each.until_at_ns is None else plots.step_at(columns, each.until_at_ns / 1e9)
        if since is not None:
            plot.mark(f"mark-{each.level}", since, until, 2.0, each.ageless, _MARKED[each.level])


def _of_ranks(title: str, unit: str, columns: Columns, scale: float, *, from_zero: bool = False) -> Plot:
    """Return a plot with a line for each rank; of many ranks with their range, and the rank that has most."""
    table = columns.mean * scale
    plot = Plot(title, unit, columns.steps, table, from_zero=from_zero)
    if len(table) <= MOST_LINES:
        for rank, values in enumerate(table):
            plot.line(values, f"hue-{rank % 8}", f"rank {rank}")
        return plot
    low, middle, high = (over_ranks(table, of) for of in (np.min, np.median, np.max))
    most = int(np.argmax(np.nansum(table, axis=1)))
    whose = f"median and range of {len(table):,} ranks"
    plot.band(low, high, "hue-0", whose)
    plot.line(middle, "hue-0", whose)
    plot.line(table[most], "hue-1", f"rank {most}, the most")
    return plot


def _of_all(title: str, columns: Columns) -> Plot:
    """Return a plot of the mean over ranks, with the range of all steps."""
    mean, low, high = mean_of_ranks(columns.mean), over_ranks(columns.low, np.min), over_ranks(columns.high, np.max)
    plot, whose = Plot(title, "", columns.steps, mean, low, high), "mean of the ranks, and the range of all steps"
    plot.band(low, high, "hue-0", whose)
    plot.line(mean, "hue-0", whose)
    if (infinite := np.isposinf(columns.mean).any(axis=0)).any():
        plot.note = f"not finite from step {columns.steps[infinite][0]:,.0f} on"
    return plot


def _phases(numbers: Mapping[str, Columns], steps: Columns) -> Plot:
    """Return a plot of the phases, mean over ranks, one upon the other."""
    names = [name for name in PHASES if name in numbers]
    tops = np.cumsum([np.nan_to_num(mean_of_ranks(numbers[name].mean)) for name in names], axis=0)
    known = np.isfinite(mean_of_ranks(steps.mean))
    plot = Plot("Phases of a step, mean of the ranks", "ms", steps.steps, *tops[-1:], from_zero=True)
    below = np.zeros(len(steps.steps))
    for name, top in zip(names, tops, strict=True):
        plot.band(np.where(known, below, np.nan), top, f"phase-{name}", name, "area")
        below = top
    return plot


def _environment(frame: Frame, record: Record, report: Report) -> list[tuple[str, str]]:
    facts = [
        ("folder", record.cwd),
        ("placement", frame.placement),
        ("variables", " ".join(f"{name}={value}" for name, value in record.environment.items())),
        ("note", frame.note or ""),
        ("id", record.run_id),
    ]
    return [each for each in (*reports.circumstances(report), *facts) if each[1]]
