"""The curves of runs, as a plot reads the numbers of ranks: over the steps, samples or seconds of each. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ddptop.agent.client.comparison.measured import Floats, Measured, Whole
from ddptop.agent.record.history.series import Series, joined

AXES: Final = ("steps", "samples", "seconds")


class Beside:
    """The curves of some runs, each in the place of a rank: the mean of its ranks over the whole run."""

    problem = ""
    names: Sequence[str] = ()

    def __init__(self, runs: Sequence[Measured], over: str) -> None:
        """Show the curves over one of `AXES`."""
        self._runs = runs
        self._over = self.records = over
        """Where these are others, there is something new to draw."""
        self.complete = bool(runs)

    def span(self, rank: int) -> tuple[int, int] | None:
        """Return the first and the last place on the axis of a run, None where it has none."""
        along = self._along(self._runs[rank], "step") if self.complete else np.empty(0)
        return None if not len(along) else (max(1, int(along[0])), max(1, int(along[-1])))

    def read_many(self, ranks: Sequence[int], metric: str, first: float, last: float) -> tuple[Whole, Series]:
        """Return whose each column is, and a number of these runs."""
        found, whose = [], []
        for rank in ranks:
            if (curve := self._runs[rank].curves.get(metric)) is not None:
                # A place of an axis is a whole number, from 1.
                along = np.maximum(1, np.rint(self._along(self._runs[rank], metric)))
                found.append(replace(curve, steps=along).part((along >= first) & (along <= last)))
                whose.append(np.full(len(found[-1].steps), rank, np.int64))
        return np.concatenate(whose) if whose else np.empty(0, np.int64), joined(found)

    def _along(self, run: Measured, metric: str) -> Floats:
        curve = run.curves.get(metric)
        if curve is None or not len(curve.steps):
            return np.empty(0)
        if self._over == "seconds":
            return curve.at - run.begun_at
        return curve.steps * run.batch if self._over == "samples" else curve.steps
