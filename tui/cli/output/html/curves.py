"""The numbers of a run over its steps, as many as a plot has room for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from ddptop.agent.client.history.columns import Columns, columns_of
from ddptop.agent.client.watch import Watch

COLUMNS: Final = 240
"""Columns of a plot."""
PATIENCE_S: Final = 20.0
"""Seconds that the observer of a live run may take for its answers."""
PHASES: Final = ("data", "forward", "backward", "optimizer", "wait", "other")
NUMBERS: Final = ("step", *PHASES, "loss", "memory")

Floats = npt.NDArray[np.float64]


def read(watch: Watch) -> Mapping[str, Columns]:
    """Return the numbers of all ranks of a run, by name; those that nobody knows are missing.

    Args:
        watch: the run, with a history, of which a frame was seen.
    """
    history = watch.history
    assert history is not None
    ranks = range(watch.run.record().world)
    give_up = time.monotonic() + PATIENCE_S
    while True:
        watch.poll()
        span = history.by_step.span(0)
        if span is not None:
            found = {name: columns_of(history.by_step, ranks, name, *span, COLUMNS) for name in NUMBERS}
        if history.complete or time.monotonic() > give_up:
            break
        time.sleep(0.02)
    if span is None:
        return {}
    return {name: columns for name, columns in found.items() if (columns.known > 0).any()}


def over_ranks(table: Floats, of: Callable[[Floats], np.float64]) -> Floats:
    """Return one value of each column, of the ranks that know it; NaN where none does."""
    known = [column[np.isfinite(column)] for column in table.T]
    return np.array([of(column) if len(column) else np.nan for column in known])


def mean_of(columns: Columns) -> Floats:
    """Return the mean of each rank over all steps; NaN where it is not known."""
    usable = np.isfinite(columns.mean) & (columns.known > 0)
    total = np.where(usable, columns.mean * columns.known, 0.0).sum(axis=1)
    count = np.where(usable, columns.known, 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1.0), np.nan)


def step_at(columns: Columns, at: float) -> float | None:
    """Return the step that the ranks had come to at a moment, in seconds since the epoch; None where none is known."""
    ends = over_ranks(columns.at, np.max)
    known = np.isfinite(ends)
    if not known.any():
        return None
    return float(np.interp(at, np.maximum.accumulate(ends[known]), columns.steps[known]))
