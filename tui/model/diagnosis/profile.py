"""Profiles of some ranks as lines of text, the same on the dashboard and in plain output, and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ddptop.agent.observer.record.profiles.kept import Kept
from ddptop.agent.observer.record.profiles.summary import Difference
from ddptop.agent.text import clean_line, plural, ranks_in_spans, size
from ddptop.tui.drawing.units import date
from ddptop.tui.model.diagnosis.kinds import COLUMNS, KINDS, MOST_RANKS
from ddptop.tui.model.diagnosis.report import ReportLine

VIEWER: Final = "https://ui.perfetto.dev"
_MOST_LINES: Final = 10
"""Operators of the table at most."""
_ENGINE: Final = "autograd::engine::evaluate_function: "
"""The beginning of the names under which torch's engine runs the functions of a backward pass."""
_SHAPES: Final = 33
"""Cells of the shapes of one rank at most."""


def left_out(kept: Kept, world: int) -> str:
    """Say which ranks were not profiled because there are so many; empty where it is none."""
    if kept.summary.accused or len(kept.summary.ranks) != MOST_RANKS or world <= MOST_RANKS:
        return ""
    missing = ranks_in_spans(set(range(world)) - set(kept.summary.ranks))
    return f"{missing} left out: at most {MOST_RANKS} are profiled unless --ranks names them"


def head(kept: Kept) -> str:
    """Return what was profiled: `profile 0003: steps 120 to 122 of ranks 0, 2, 2026-11-27 14:05:03`."""
    summary = kept.summary
    return f"profile {kept.number}: {_steps(kept)} of {ranks_in_spans(summary.ranks)}, {date(summary.at)}"


def sentences(kept: Kept) -> list[str]:
    """Return which ranks are compared, and in what they differ."""
    summary = kept.summary
    return [clean_line(text, 400) for text in (summary.compared, *summary.sentences) if text]


def places(kept: Kept) -> list[str]:
    """Return where the trace is, and what shows it."""
    return [f"{kept.trace} ({size(kept.size)})", f"open it at {VIEWER}"]


def table(kept: Kept) -> list[str]:
    """Return the largest differences as a table of at most 80 columns, its head first; empty where there is none.

    Below an operator stand the shapes that it is called with, where they differ.
    """
    summary = kept.summary
    compared = summary.peer is not None
    rows = [["own ms a step", f"rank {summary.culprit}", f"rank {summary.peer}", "more", "calls"]]
    for each in summary.operators[:_MOST_LINES]:
        rows.append(
            [
                each.name.replace(_ENGINE, "engine: "),
                _ms(each.culprit_ms),
                _ms(each.peer_ms),
                _ms(each.difference_ms),
                _calls(each, compared=compared),
            ]
        )
    if not compared:
        rows = [[*row[:2], *row[4:]] for row in rows]
    if len(rows) == 1:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    widths[0] = min(widths[0], COLUMNS - sum(width + 2 for width in widths[1:]))
    rows = [[clean_line(row[0], widths[0]), *row[1:]] for row in rows]
    first, *rest = ("  ".join(map(_cell, row, widths, range(len(row)))).rstrip() for row in rows)
    lines = [first]
    for line, each in zip(rest, summary.operators, strict=False):
        lines.append(line)
        if compared and each.culprit_shapes and each.peer_shapes:
            mine, other = (clean_line(found[0], _SHAPES) for found in (each.culprit_shapes, each.peer_shapes))
            lines.append(f"    {mine} against {other}")
    more = summary.left_out + max(0, len(summary.operators) - _MOST_LINES)
    return [*lines, f"and {plural(more, 'operator')} more: summary.json beside the trace"] if more else lines


def text(kept: Kept) -> list[str]:
    """Return the whole of a profile as lines."""
    rows = table(kept)
    return [head(kept), *sentences(kept), *(["", *rows] if rows else []), "", *places(kept)]


def newest(kept: Sequence[Kept]) -> list[ReportLine]:
    """Return the newest profile as lines of a screen."""
    if not kept:
        return [ReportLine("", KINDS["profile"].none)]
    first = kept[0]
    lines = [ReportLine("", head(first), "bold value"), ReportLine("", "")]
    lines += [ReportLine("compared" if at == 0 else str(at), said) for at, said in enumerate(sentences(first))]
    lines += [ReportLine("", ""), *(ReportLine("", line) for line in table(first)), ReportLine("", "")]
    return [*lines, *(ReportLine(label, place) for label, place in zip(("trace", "view"), places(first), strict=True))]


def listing(kept: Sequence[Kept]) -> list[str]:
    """Return a line for each profile, and where the newest is."""
    rows = [
        [
            each.number,
            date(each.summary.at),
            _steps(each),
            ranks_in_spans(each.summary.ranks),
            size(each.size),
            clean_line(next(iter(each.summary.sentences), "")),
        ]
        for each in kept
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(6)] if rows else []
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*lines, "", *places(kept[0])] if kept else []


def as_json(kept: Kept) -> dict[str, Any]:
    """Return a profile as it is printed with `--json`."""
    found: dict[str, Any] = msgspec.to_builtins(kept.summary)
    return {"number": kept.number, "trace": str(kept.trace), "size_bytes": kept.size, **found}


def _steps(kept: Kept) -> str:
    first, last = kept.summary.steps
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"


def _calls(each: Difference, *, compared: bool) -> str:
    if not each.culprit_calls and not each.peer_calls:
        # Python outside of operators.
        return ""
    return f"{each.culprit_calls:g} / {each.peer_calls:g}" if compared else f"{each.culprit_calls:g}"


def _ms(value: float) -> str:
    return f"{value:,.1f}" if abs(value) >= 9.95 else f"{value:.2f}"


def _cell(text: str, width: int, column: int) -> str:
    """Return a cell, the names at the left, numbers at the right."""
    return text.rjust(width) if column else text.ljust(width)
