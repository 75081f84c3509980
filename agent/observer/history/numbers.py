"""The names of the numbers that a history holds, and the widths of its buckets of time. Light to import."""

from __future__ import annotations

from typing import Final

WIDTHS_S: Final = (1, 4, 16, 64)
"""Widths of the buckets in which numbers over time are held, in seconds."""

RECORDED: Final = (
    "loss", "step", "data", "forward", "backward", "optimizer", "wait", "other",
    "all_reduce", "samples", "learning_rate", "memory",
)  # fmt: skip
"""The numbers held of every step over the whole run, in the order of the plot's choice."""
CUSTOM: Final = "log."
"""Before the name of a value that the script itself gives."""

OVER_TIME: Final = (
    "own", "step", "wait", "data", "forward", "backward", "optimizer", "other", "loss", "memory", "number",
)  # fmt: skip
"""The numbers held over time; `number` is that of the step."""
