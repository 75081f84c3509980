"""Bars and sparklines as segments: pure functions of numbers and a width."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from rich.segment import Segment

from ddptop.agent.wire.frames import ByLooks
from ddptop.tui.drawing.lines import Row
from ddptop.tui.drawing.theme import LETTERS, Ink
from ddptop.tui.drawing.units import DASH

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_BROKEN = "×"
PhaseCells = tuple[tuple[str, int], ...]
"""The phases in a bar, in its order, each with the cells that it takes."""


def phase_bar(phases_ms: Mapping[str, float], scale_ms: float, width: int, ink: Ink) -> Row:
    """Return the phases of a step, one after the other; `width` cells are `scale_ms`."""
    return phase_row(phase_cells(phases_ms, scale_ms, width), width, ink)


def phase_cells(phases_ms: Mapping[str, float], scale_ms: float, width: int) -> PhaseCells:
    """Return how many cells of such a bar each phase takes, without those that take none."""
    cells: list[tuple[str, int]] = []
    end = 0.0
    drawn = 0
    for phase in LETTERS:
        end += max(0.0, phases_ms.get(phase) or 0.0)
        # Rounding the running sum, not each part, keeps the length of the whole right.
        more = round(min(1.0, end / scale_ms) * width) - drawn if scale_ms > 0 and math.isfinite(end) else 0
        if more > 0:
            cells.append((phase, more))
            drawn += more
    return tuple(cells)


def phase_row(cells: PhaseCells, width: int, ink: Ink) -> Row:
    """Return the bar in which the phases take so many of `width` cells."""
    row: Row = []
    for phase, count in cells:
        first, rest = ink.block(phase)
        row += [Segment(LETTERS[phase], first), Segment(LETTERS[phase] * (count - 1), rest)]
    row.append(Segment(" " * (width - sum([count for _, count in cells]))))
    return row


def looks_bar(looks: ByLooks | None, width: int, ink: Ink) -> Row:
    """Return the parts of a rank's time as a bar, by looks from outside, behind their error: `± 3 dfffbbbw`."""
    if looks is None or not looks.looks:
        return [Segment(DASH.ljust(width), ink["faint"])]
    error, room = f"± {max(1.0, 100 * looks.error):<2.0f} ", max(0, width - 5)
    return [Segment(error, ink["label"]), *phase_row(phase_cells(looks.shares, 1.0, room), room, ink)]


def gauge(share: float, width: int, ink: Ink) -> Row:
    """Return a bar filled to `share` of `width` cells."""
    full = round(max(0.0, min(1.0, share)) * width) if math.isfinite(share) else 0
    return [Segment("█" * full, ink["gauge"]), Segment("░" * (width - full), ink["faint"])]


def binned(values: Sequence[float | None], last: int, width: int) -> list[float | None]:
    """Return at most `width` means of neighbouring values, oldest first; NaN where a value is not finite.

    The bins are fixed to step numbers (`last` is that of the last value), so that a bin
    keeps its values while new ones come in, and the frame moves without shimmering.
    """
    if width <= 0 or not values:
        return []
    per_bin = max(1, math.ceil(len(values) / width))
    first = last - len(values) + 1
    edges = [0, *range(per_bin - first % per_bin, len(values), per_bin), len(values)]
    edges = edges[-width - 1 :]
    if None in values:
        return [_mean(values[begin:end]) for begin, end in itertools.pairwise(edges)]
    # Slices, not a value at a time: with all panels in sight this is done 100 times a second.
    return [sum(values[begin:end]) / (end - begin) for begin, end in itertools.pairwise(edges)]  # type: ignore[arg-type]  # no None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def sparkline(
    values: Sequence[float | None],
    last: int,
    width: int,
    ink: Ink,
    height: int = 1,
    hue: str = "history",
    ends: tuple[float, float] | None = None,
) -> list[Row]:
    """Return the course of values as `height` rows, top first, between `ends`, or their own least and largest."""
    means = binned(values, last, width)
    finite = [value for value in means if value is not None and math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    if ends is not None:
        low, high = ends
    levels = 8 * height
    signs = _signs(height)
    if len(finite) == len(means):
        # Nearly always, and many times a second.
        marks = _levels(finite, low, high, levels)
        if ends is not None:
            marks = [max(0, min(levels, mark)) for mark in marks]
        blank = " " * (width - len(marks))
        style = ink[hue]
        return (
            [[Segment("".join(map(row.__getitem__, marks)), style), Segment(blank)] for row in signs]
            if marks
            else [[Segment(blank)] for _ in signs]
        )
    heights: list[int | None] = []
    for value in means:
        if value is None:
            heights.append(0)
        elif not math.isfinite(value):
            heights.append(None)
        else:
            heights += _levels([value], low, high, levels)
    rows: list[Row] = []
    for above, row_signs in zip(range(height - 1, -1, -1), signs, strict=True):
        row: Row = []
        for broken, marks_there in itertools.groupby(heights, lambda mark: mark is None):
            if broken:
                text = (_BROKEN if above == 0 else " ") * len(list(marks_there))
            else:
                text = "".join(row_signs[max(0, min(levels, mark or 0))] for mark in marks_there)
            row.append(Segment(text, ink["level-error" if broken else hue]))
        rows.append([*row, Segment(" " * (width - len(heights)))])
    return rows


def _levels(values: Sequence[float], low: float, high: float, levels: int) -> list[int]:
    if not high > low:
        return [levels // 2] * len(values)
    if math.isinf(high - low):
        # A difference may be larger than any float.
        low, high, values = low / 2, high / 2, [value / 2 for value in values]
    return [1 + round((value - low) / (high - low) * (levels - 1)) for value in values]


@lru_cache(maxsize=16)
def _signs(height: int) -> list[str]:
    """Return, for each row from the top one down, the sign of each level from 0 on."""
    rows = range(height - 1, -1, -1)
    return ["".join(_EIGHTHS[max(0, min(8, level - 8 * row))] for level in range(8 * height + 1)) for row in rows]
