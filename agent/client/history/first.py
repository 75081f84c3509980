"""The first question about a run, sent before anybody looks back, and the size of all questions.  It needs no NumPy."""

from __future__ import annotations

from typing import Final

from ddptop.agent import wire

COLUMNS: Final = 512
"""Columns that are asked for: a plot has no more."""
ALL_RANKS: Final = 64
"""Of so many ranks all are asked for together; of more, those in sight, or all where these are many."""
_FIRST: Final = "loss"
"""What a plot shows at first, asked for before it does."""


def first_question(world: int) -> wire.History:
    """Return the first question about a run of so many ranks."""
    return wire.History(-1, _FIRST, None, most=COLUMNS) if world <= ALL_RANKS else wire.History(-1, ranks=())
