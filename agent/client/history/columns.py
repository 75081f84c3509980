"""The numbers of some ranks over the steps, as the columns of a plot. Imports NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ddptop.agent.record.history.columns import Columns as Columns
from ddptop.agent.record.history.columns import fold, stride_of
from ddptop.agent.record.history.series import Floats as Floats
from ddptop.agent.record.history.series import Series


class Numbers(Protocol):
    """Numbers of all ranks over the steps."""

    def span(self, rank: int) -> tuple[int, int] | None:
        """Return the first and the last step held of a rank."""
        ...

    def read_many(
        self, ranks: Sequence[int], metric: str, first: float, last: float
    ) -> tuple[npt.NDArray[np.int64], Series]:
        """Return whose each bucket is, and a metric of these ranks, maybe of others too."""
        ...


def columns_of(numbers: Numbers, ranks: Sequence[int], metric: str, first: int, last: int, width: int) -> Columns:
    """Return a metric of some ranks from step `first` to step `last`, in at most `width` columns."""
    whose, series = numbers.read_many(ranks, metric, first, last)
    return fold(ranks, whose, series, first, last, stride_of(first, last, width))


def mean_of_ranks(table: Floats) -> Floats:
    """Return the mean of each column over the ranks that know it; NaN where none does."""
    finite = np.isfinite(table)
    known = finite.sum(axis=0)
    mean: Floats = np.where(known > 0, np.where(finite, table, 0.0).sum(axis=0) / np.maximum(known, 1), np.nan)
    return mean
