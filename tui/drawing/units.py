"""Numbers and text, ready for a cell grid.

A number keeps its width and its unit while it changes, so that nothing jumps; what is not
known is a dash.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len, chop_cells, set_cell_size

from ddptop.agent.text import size as plain_size

DASH: Final = "–"
"""The sign for a value that is not known."""
COLUMNS: Final = 78
"""Columns of a table at most: a terminal of 80, beside the scroll bar of a screen."""


def fit(text: str, width: int) -> str:
    """Return `text` in exactly `width` cells, cut with an ellipsis or padded."""
    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, width - 1) + "…"


def shorten(text: str, width: int) -> str:
    """Return `text` in at most `width` cells, cut with an ellipsis."""
    return text if cell_len(text) <= width else fit(text, width)


def shorten_middle(text: str, width: int) -> str:
    """Return `text` in at most `width` cells, with an ellipsis before its last part, two thirds of the room."""
    if cell_len(text) <= width or width < 3:
        return shorten(text, width)
    end = text[-(2 * width // 3) :]
    while cell_len(end) > 2 * width // 3:
        end = end[1:]
    return fit(text, width - cell_len(end)) + end


def chopped(text: str, width: int) -> list[str]:
    """Return a text in one or more pieces of so many cells at most, and at least one character in each."""
    return [piece for piece in chop_cells(text, max(1, width)) if piece] or [text]


def wrapped(text: str, width: int) -> list[str]:
    """Return a text in lines of so many cells at most, broken between words where that is possible."""
    lines: list[str] = []
    line = ""
    for piece in re.findall(r" +|[^ ]+", re.sub(r"\s", " ", text)):
        if cell_len(line) + cell_len(piece) <= width:
            line += piece
            continue
        if line.strip():
            lines.append(line.rstrip())
            line = ""
        if not piece.isspace():
            *whole, line = chopped(piece, width)
            lines += whole
    return [*lines, line] if line.strip() or not lines else lines


def aligned(rows: Sequence[Sequence[str]], left: int | None = None) -> list[str]:
    """Return rows as lines of a table: the first `left` columns, or all, at the left, the others at the right."""
    columns = []
    for number, column in enumerate(zip(*rows, strict=True)):
        width = max(map(cell_len, column))
        gaps = [" " * (width - cell_len(cell)) for cell in column]
        at_left = left is None or number < left
        columns.append([cell + gap if at_left else gap + cell for cell, gap in zip(column, gaps, strict=True)])
    return ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]


def count(number: int | None) -> str:
    """Return `1,284`."""
    return DASH if number is None else f"{number:,}"


def milliseconds(value: float | None) -> str:
    """Return six cells: `  81.3`, ` 1,240`; the unit is the caller's."""
    if value is None or not math.isfinite(value):
        return DASH.rjust(6)
    if value >= 99_999.5:
        return ">99999"
    return f"{value:6.1f}" if value < 999.95 else f"{value:6,.0f}"


def short_milliseconds(value: float | None) -> str:
    """Return four cells: ` 9.8`, `  81`, `1240`, ` 12s`."""
    if value is None or not math.isfinite(value):
        return DASH.rjust(4)
    if value < 9.95:
        return f"{value:4.1f}"
    if value < 9999.5:
        return f"{value:4.0f}"
    return f"{value / 1000:3.0f}s" if value < 999_499 else ">999"


def size(value: int | None) -> str:
    """Return eight cells: `  64 KiB`, ` 812 MiB`, `1.23 GiB`, `61.4 GiB`."""
    if value is None:
        return DASH.rjust(4) + "    "
    number, unit = plain_size(value).split()
    return f"{number:>4} {unit:<3}"


def percent(value: float | None, width: int = 4) -> str:
    """Return `width` cells: ` 96%`."""
    if value is None or not math.isfinite(value):
        return DASH.rjust(width)
    text = f"{value:.0f}%".rjust(width)
    return text if len(text) == width else f">{'9' * (width - 2)}%"


def loss(value: float | None, *, unsure: bool = False) -> str:
    """Return seven cells: ` 1.2840`, ` 0.0123`, `1.25e-5`, `    nan`; `~1.2840` where it is `unsure`."""
    if value is None:
        return DASH.rjust(7)
    if not math.isfinite(value):
        return str(value).rjust(7)
    mark, size_ = "~" if unsure else "", abs(value)
    if size_ == 0 or 1e-2 <= size_ < 1e4:
        digits = 4 if size_ < 100 else 2
        texts = [f"{mark}{value:.{each}f}" for each in (digits, digits - 1)]
    else:
        texts = [mark + _power(value, each) for each in (2, 1, 0)]
    # Fewer digits make room for the mark, a sign, or a long exponent.
    return next((text for text in texts if len(text) <= 7), texts[-1]).rjust(7)


def _power(value: float, digits: int) -> str:
    number, power = f"{value:.{digits}e}".split("e")
    return f"{number}e{int(power)}"


def significant(value: float, digits: int = 4) -> str:
    """Return any number with so many significant digits, whatever its size: `0.4375`, `1.234e+08`, `1.4e-11`, `nan`."""
    return f"{value:.{digits}g}"


def collective(kind: str) -> str:
    """Return its name in words: `all-reduce`."""
    return kind.replace("_", "-")


def number(value: float | None) -> str:
    """Return nine cells of any number: `   0.4375`, `1.234e+08`, `      nan`."""
    return (DASH if value is None else significant(value)).rjust(9)


def rate(value: float | None) -> str:
    """Return five cells, samples a second: `  412`, ` 9.31`, `1,284`."""
    if value is None or not math.isfinite(value):
        return DASH.rjust(5)
    if value < 9.995:
        return f"{value:5.2f}"
    if value < 99_999:
        return f"{value:5,.0f}" if value < 9999.5 else f"{value / 1000:4.1f}k"
    return f"{value / 1000:4.0f}k" if value < 999_499 else f"{min(value / 1e6, 9999):4.0f}M"


def share(part: float | None) -> str:
    """Return six cells, a part of one: ` 41.2%`, `  0.3%`."""
    return (DASH if part is None or not math.isfinite(part) else f"{min(100 * part, 999.9):.1f}%").rjust(6)


def flops(amount: float | None) -> str:
    """Return ten cells, floating-point operations: `12.3 TFLOP`, ` 189 MFLOP`."""
    if amount is None or not math.isfinite(amount):
        return DASH.rjust(10)
    known = (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6))
    prefix, factor = next((each for each in known if amount >= 0.9995 * each[1]), ("k", 1e3))
    return f"{significant(min(round(amount / factor, 2), 999), 3):>4} {prefix}FLOP"


def clock(at: float | None) -> str:
    """Return a time of day, `12:34:56`, of a moment in seconds since the epoch."""
    if at is None:
        return DASH
    try:
        return time.strftime("%H:%M:%S", time.localtime(at))
    except (OverflowError, OSError, ValueError):
        return DASH


def duration(seconds: float | None) -> str:
    """Return `06:12`, `1:06:12`, `3d 04h`."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    whole = max(0, int(seconds))
    if whole < 3600:
        return f"{whole // 60:02d}:{whole % 60:02d}"
    if whole < 2 * 86_400:
        return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    return f"{whole // 86_400}d {whole // 3600 % 24:02d}h"


def age(seconds: float | None) -> str:
    """Return six cells: ` 0.4 s`, `  12 s`, ` 3 min`, `   2 h`."""
    if seconds is None or not math.isfinite(seconds):
        return DASH.rjust(6)
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:4.1f} s"
    if seconds < 119.5:
        return f"{seconds:4.0f} s"
    if seconds < 5940:
        return f"{seconds / 60:2.0f} min"
    return f"{seconds / 3600:4.0f} h" if seconds < 172_800 else f"{seconds / 86_400:4.0f} d"


def date(at: float) -> str:
    """Return a time with its date: `2026-11-25 14:02:03`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def moment(at: float | None) -> str:
    """Return a time with its day: `25 Nov 14:02`."""
    return DASH if at is None else time.strftime("%d %b %H:%M", time.localtime(at))
