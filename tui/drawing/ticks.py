"""Where the ticks of an axis are, and how they are written. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final

LABEL: Final = 8
"""Cells of a label beside an axis."""
_FEW: Final = 3
"""Ticks that a logarithmic axis has at least, where there is room."""


def even_step(least: float, tolerance: float = 1e-9) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below `least`.

    `tolerance` is the part of `least` by which it may be below all the same.
    """
    ten = 10.0 ** math.floor(math.log10(least))
    # In floating point the power may come out one too small.
    return next(part * ten for part in (1, 2, 5, 10, 20) if part * ten >= least * (1 - tolerance))


def even_ticks(low: float, high: float, most: int, tolerance: float = 1e-9) -> list[float]:
    """Return at most so many ticks between two values, at multiples of an even step; see `even_step`."""
    if high <= low:
        return [low]
    apart = even_step((high - low) / max(1, most), tolerance)
    first = math.ceil(low / apart - 1e-9)
    ticks = [round(number * apart, 12) for number in range(first, first + most + 1)]
    return [tick for tick in ticks if low <= tick <= high][:most]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return labels by which neighbours differ, in `LABEL` cells wherever that is possible."""
    largest = max(map(abs, ticks), default=0.0)
    if largest == 0:
        return ["0" for _ in ticks]
    apart = min((abs(b - a) for a, b in itertools.pairwise(ticks)), default=largest)
    for size, letter in ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")):
        digits = max(0, -math.floor(math.log10(apart / size) + 1e-9))
        labels = [f"{tick / size:.{digits}f}{letter if tick else ''}" for tick in ticks]
        if largest < 1e4 * size and max(map(len, labels)) <= LABEL:
            return labels
    digits = math.floor(math.log10(largest) + 1e-9) - math.floor(math.log10(apart) + 1e-9)
    return [f"{tick:.{digits}e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e") for tick in ticks]


def decades(low: float, high: float, most: int) -> list[float]:
    """Return at most so many ticks between two powers of ten, as powers: 1, 2 and 5 times a power of ten, or fewer.

    Where less than a decade holds hardly any of them, the ticks are at even values.
    """
    exponents = range(math.floor(low), math.ceil(high) + 1)
    found: list[float] = []
    for parts in ((1, 2, 5), (1, 3), (1,)):
        ticks = sorted(exponent + math.log10(part) for exponent in exponents for part in parts)
        found = [tick for tick in ticks if low <= tick <= high]
        if len(found) <= most:
            break
    else:
        every = math.ceil(len(exponents) / max(1, most))
        return [tick for tick in found if tick % every == 0][:most]
    if len(found) < min(_FEW, most) and high - low < 1:
        even = [math.log10(value) for value in even_ticks(10**low, 10**high, most) if value > 0]
        return max(found, [tick for tick in even if low <= tick <= high], key=len)
    return found
