"""The names of the numbers that a history has, and the widths of its columns of time. Light to import."""

from __future__ import annotations

from typing import Final

WIDTHS_S: Final = (1, 4, 16, 64)
"""Widths of the columns in which numbers over time are drawn, in seconds."""
MOST_COLUMNS: Final = 512
"""Columns over time that are drawn at once, at most."""
_LEAST_COLUMNS: Final = 64
_MOST_SECONDS: Final = 1 << 18
"""Columns over time of all ranks together, as far as `_LEAST_COLUMNS` allows."""

RECORDED: Final = (
    "loss", "step", "data", "forward", "backward", "optimizer", "wait", "other",
    "all_reduce", "samples", "tokens", "learning_rate", "mfu", "memory",
)  # fmt: skip
"""The numbers of every step over the whole run, in the order of the plot's choice."""
CUSTOM: Final = "log."
"""Before the name of a value that the script itself gives."""
MOST_NAMES: Final = 64
"""Names of values given by the script that are taken in; values by further names are counted."""

OVER_TIME: Final = (
    "own", "step", "wait", "data", "forward", "backward", "optimizer", "other", "loss", "memory", "number",
)  # fmt: skip
"""The numbers over time; `number` is that of the step."""


def columns_for(world: int) -> int:
    """Return how many columns over time there are of each width, of so many ranks."""
    return max(_LEAST_COLUMNS, min(MOST_COLUMNS, _MOST_SECONDS // max(1, world)))
