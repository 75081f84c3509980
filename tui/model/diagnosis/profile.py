"""Profiles of some ranks as lines of text, the same on the dashboard and in plain output, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ddptop.agent.client.diagnosis.kinds import left_out
from ddptop.agent.text import clean_line, plural, ranks_in_spans, size
from ddptop.agent.wire.diagnoses.kept import Difference, Kept, Summary
from ddptop.tui.drawing.units import COLUMNS, aligned, date
from ddptop.tui.model.diagnosis.report import ReportLine, block

VIEWER: Final = "https://ui.perfetto.dev"
_MOST_LINES: Final = 10
"""Operators of the table at most."""
_ENGINE: Final = "autograd::engine::evaluate_function: "
"""The beginning of the names under which torch's engine runs the functions of a backward pass."""
_SHAPES: Final = 33
"""Cells of the shapes of one rank at most."""
_SENTENCE: Final = 400
"""Characters of a sentence at most."""


def lines(kept: Kept[Summary], world: int) -> list[ReportLine]:
    """Return the whole of a profile."""
    summary = kept.found
    head = f"profile {kept.number}: {_steps(kept)} of {ranks_in_spans(summary.ranks)}, {date(summary.at)}"
    found = [ReportLine("", head, "bold value"), ReportLine("", "")]
    if summary.compared:
        found.append(ReportLine("compared", clean_line(summary.compared, _SENTENCE)))
    found += [ReportLine(str(at), clean_line(text, _SENTENCE)) for at, text in enumerate(summary.sentences, 1)]
    if missing := left_out(summary.ranks, world):
        found.append(ReportLine("left out", missing))
    return [
        *found,
        *block(_table(kept)),
        ReportLine("", ""),
        ReportLine("trace", f"{kept.file} ({size(kept.size)})"),
        ReportLine("view", f"open it at {VIEWER}"),
    ]


def _table(kept: Kept[Summary]) -> list[str]:
    """Return the largest differences as a table, its head first; empty where there is none.

    Below an operator stand the shapes that it is called with, where they differ.
    """
    summary = kept.found
    compared = summary.peer is not None
    shown = summary.operators[:_MOST_LINES]
    if not shown:
        return []
    rows = [["own ms a step", f"rank {summary.culprit}", f"rank {summary.peer}", "more", "calls"]]
    rows += [
        [
            each.name.replace(_ENGINE, "engine: "),
            _ms(each.culprit_ms),
            _ms(each.peer_ms),
            _ms(each.difference_ms),
            _calls(each, compared=compared),
        ]
        for each in shown
    ]
    if not compared:
        rows = [[*row[:2], *row[4:]] for row in rows]
    room = COLUMNS - sum(2 + max(map(len, column)) for column in list(zip(*rows, strict=True))[1:])
    head, *texts = aligned([[clean_line(name, room), *others] for name, *others in rows], left=1)
    found = [head]
    for text, each in zip(texts, shown, strict=True):
        found.append(text)
        if compared and (differing := _differing(each)):
            found.append("    {} against {}".format(*differing))
    more = summary.left_out + len(summary.operators) - len(shown)
    return [*found, f"and {plural(more, 'operator')} more: summary.json beside the trace"] if more else found


def _differing(each: Difference) -> tuple[str, ...]:
    """Return the shapes on which the two ranks spend most, from the first argument on in which they differ."""
    pairs = zip(each.culprit_shapes, each.peer_shapes, strict=False)
    pair = next((pair for pair in pairs if pair[0] != pair[1]), None)
    if pair is None:
        return ()
    mine, other = pair
    begin = 0
    if max(len(mine), len(other)) > _SHAPES:
        apart = next((at for at, (one, two) in enumerate(zip(mine, other, strict=False)) if one != two), 0)
        begin = max(0, mine.rfind("[", 0, apart))
    return tuple(clean_line("…" * (begin > 0) + text[begin:], _SHAPES) for text in pair)


def listing(kept: Sequence[Kept[Summary]]) -> list[str]:
    """Return a line for each profile, and the trace of the newest."""
    rows = [
        [
            each.number,
            date(each.found.at),
            _steps(each),
            ranks_in_spans(each.found.ranks),
            size(each.size),
            clean_line(next(iter(each.found.sentences), "")),
        ]
        for each in kept
    ]
    return [*aligned(rows), "", f"the trace of {kept[0].number} is {kept[0].file}; open it at {VIEWER}"]


def as_json(kept: Kept[Summary]) -> dict[str, Any]:
    """Return a profile as it is printed with `--json`."""
    found: dict[str, Any] = msgspec.to_builtins(kept.found)
    return {"number": kept.number, "trace": str(kept.file), "size_bytes": kept.size, **found}


def _steps(kept: Kept[Summary]) -> str:
    first, last = kept.found.steps
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"


def _calls(each: Difference, *, compared: bool) -> str:
    if not each.culprit_calls and not each.peer_calls:
        # Python outside of operators.
        return ""
    return f"{each.culprit_calls:g} / {each.peer_calls:g}" if compared else f"{each.culprit_calls:g}"


def _ms(value: float) -> str:
    return f"{value:,.1f}" if abs(value) >= 9.95 else f"{value:.2f}"
