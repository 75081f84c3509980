"""A rank's history in small: the course of every number, and how long its all-reduces took, bucket by bucket. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from rich.segment import Segment

from ddptop.agent.wire import Step
from ddptop.tui.drawing import units
from ddptop.tui.drawing.bars import sparkline
from ddptop.tui.drawing.lines import Row, spread
from ddptop.tui.drawing.theme import LETTERS, Ink
from ddptop.tui.model.frame import Frame
from ddptop.tui.model.metrics import METRICS, WIDTHS_S, Metric

LABEL: Final = 24
"""Cells before a curve: its name, its last value, its least and largest."""
MOST_BUCKETS: Final = 12
_BINS: Final = 24
_ENOUGH: Final = 120
_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
_OUTLIER: Final = 1.5
"""Where the largest value is so many times what 98 of 100 stay below, the curve is cut there."""
_LEAST_SPAN: Final = 0.4
"""A curve of times spans at least this share of its middle."""


def history_rows(frame: Frame, rank: int, width: int, ink: Ink, *, height: int = 1) -> list[Row]:
    """Return the course of each number of a rank, `height` lines each; none where nothing is held."""
    if frame.history is None or width < LABEL + 8:
        return []
    by_time = frame.history.by_time
    at = frame.at if frame.ended_at is None else frame.ended_at
    columns = min(width - LABEL - 1, by_time.columns)
    # A few minutes where they do not fit as seconds.
    level = 0 if columns >= _ENOUGH or at - (frame.started_at or at) <= columns else 1
    last = by_time.bucket(level, at)
    if not by_time.knows(level, last):
        last -= 1
    rows: list[Row] = []
    for metric in METRICS.values():
        values = [
            None if math.isnan(value) else value
            for value in by_time.window(metric.name, level, last, columns, rank)[0].tolist()
        ]
        rows += _course(metric, values, last, columns, height, ink)
    ends = f"-{units.duration(columns * WIDTHS_S[level])}", "now" if frame.ended_at is None else "end"
    first, newest = (Segment(text, ink["label"]) for text in ends)
    return [*rows, [Segment(" " * LABEL), *spread([first], [newest], columns)]]


def _course(
    metric: Metric, values: Sequence[float | None], last: int, columns: int, height: int, ink: Ink
) -> list[Row]:
    hue = f"phase-{metric.name}" if metric.name in LETTERS else "history"
    known = sorted(value for value in values if value is not None and math.isfinite(value))
    latest = next((value for value in reversed(values) if value is not None), None)
    text = units.DASH if latest is None else metric.text(latest).strip()
    curve = sparkline(values, last, columns, ink, height, hue, _ends(metric, known))
    name = metric.name if metric.name != "own" else "own time"
    labels: list[Row] = [
        [Segment(f"  {name:<10}", ink["label"]), Segment(f"{text:>10}  ", ink["faint" if latest is None else "value"])]
    ]
    if height > 1:
        ends = f"{metric.text(known[0]).strip()} … {metric.text(known[-1]).strip()}" if known else ""
        labels.append([Segment(units.fit(ends.rjust(LABEL - 2), LABEL - 2) + "  ", ink["faint"])])
    labels += [[Segment(" " * LABEL)]] * (height - len(labels))
    return [[*label, *row] for label, row in zip(labels, curve, strict=True)]


def _ends(metric: Metric, known: Sequence[float]) -> tuple[float, float] | None:
    """Return the values at the bottom and the top of a curve, so that noise looks calm and a hiccup hides nothing."""
    if not known:
        return None
    low, usual, high = known[0], known[(len(known) - 1) * 98 // 100], known[-1]
    if high > _OUTLIER * usual > 0:
        high = usual
    middle = (low + high) / 2
    least = _LEAST_SPAN * middle / 2 if metric.unit == "ms" else 0.0
    return min(low, middle - least), max(high, middle + least)


def latency_rows(steps: Sequence[Step], width: int, ink: Ink) -> list[Row]:
    """Return a histogram of the durations of each all-reduce of a step over many steps, on a common scale.

    The k-th all-reduce of a step is DDP's k-th bucket; those that the last step had are shown.
    """
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    newest: list[tuple[int, int]] = []
    for step in steps:
        calls = [call for call in step.collectives if call.op.startswith("all_reduce")]
        timed = [(index, call) for index, call in enumerate(calls) if call.duration_ns]
        for index, call in timed:
            found[index, call.bytes].append((call.duration_ns or 0) / 1e6)
        if timed:
            newest = [(index, call.bytes) for index, call in timed]
    if not newest:
        return []
    shown = newest[:MOST_BUCKETS]
    low = min(min(found[key]) for key in shown)
    high = max(max(found[key]) for key in shown)
    bins = max(4, min(_BINS, width - 39))
    heading = f"  {'bucket':<7}{'size':>8}  {'p50':>6} {'p99':>6} ms"
    scale = f"{units.short_milliseconds(low).strip()} ms".ljust(bins - 8) + f"{units.short_milliseconds(high)} ms"
    rows: list[Row] = [[Segment(heading, ink["label"]), Segment(f"   {scale}", ink["label"])]]
    for index, size in shown:
        values = sorted(found[index, size])
        middle, late = (units.milliseconds(values[(len(values) - 1) * share // 100]) for share in (50, 99))
        text = f"  {index:<7}{units.size(size):>8}  {middle} {late}      "
        rows.append([Segment(text, ink["value"]), Segment(_histogram(values, low, high, bins), ink["phase-wait"])])
    if len(newest) > len(shown):
        rows.append([Segment(f"  and {len(newest) - len(shown)} more", ink["label"])])
    return rows


def _histogram(values: Sequence[float], low: float, high: float, bins: int) -> str:
    """Return the counts in bins of equal ratio, each as a column of eighths; one that is not empty has at least one."""
    counts = [0] * bins
    ratio = math.log(high / low) if high > low > 0 else 0.0
    for value in values:
        place = math.log(value / low) / ratio if ratio else 0.5
        counts[min(bins - 1, int(place * bins))] += 1
    most = max(counts)
    return "".join(_EIGHTHS[math.ceil(count / most * 8)] for count in counts)
