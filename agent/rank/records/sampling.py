"""The steps that stand for all where not every one can be looked at: one in so many, the same on all ranks.

Those that a rank records, those whose collectives are timed, and those that stay in a long recording are chosen here
alike.  This module imports only the standard library.
"""

from __future__ import annotations

from typing import Final

_SHIFTS_AND_FACTORS: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""The mixing of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
_WORD: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15


def next_sampled(step: int, every: int) -> int:
    """Return the first step from `step` on that is in the sample of one in `every`, a power of two.

    Of each `every` steps in a row, beginning at a multiple of it, one is in the sample, and each time another one: what
    a script does in every second or every tenth step meets the sample as often as it comes.  A sample is part of each
    larger one, so that ranks with different numbers have steps in common.
    """
    row = step // every
    sampled = _sampled(row, every)
    return sampled if sampled >= step else _sampled(row + 1, every)


def _sampled(row: int, every: int) -> int:
    """Return the step of the `row`-th so many that is in the sample, by halving them until it is alone."""
    while every > 1:
        every //= 2
        row = 2 * row + _bit(row, every)
    return row


def _bit(row: int, halves: int) -> int:
    """Return 0 or 1, the same for the same arguments, and otherwise without any order."""
    mixed = (row + halves * _GOLDEN) & _WORD
    for shift, factor in _SHIFTS_AND_FACTORS:
        mixed = ((mixed ^ mixed >> shift) * factor) & _WORD
    return mixed >> 63
