"""What has been answered of one number of some ranks: tables of consecutive columns, joined as answers come. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ddptop.agent import wire
from ddptop.agent.record.history.columns import table_of
from ddptop.agent.record.history.series import Cells, Series, Whole, joined

MOST_CELLS: Final = 4 << 20
"""Cells of one answer at most: an observer sends a quarter of that."""
_TABLES: Final = ("mean", "low", "high", "known")


@dataclass
class Stretch:
    """One number of some ranks over consecutive columns, a row each rank."""

    ranks: npt.NDArray[np.int64]
    """Whose the rows are, rising."""
    width: int
    """Steps or seconds of a column."""
    begin: int
    """Number of the first column."""
    cells: Cells
    """(4, ranks, columns): mean, least, greatest, how many steps knew the number; NaN, and 0, where none did."""
    at: npt.NDArray[np.float64]
    """(ranks, columns): end of the last step, seconds since the epoch."""

    @property
    def columns(self) -> int:
        """How many columns there are."""
        return int(self.cells.shape[2])

    @property
    def end(self) -> int:
        """Number of the column after the last one."""
        return self.begin + self.columns

    def joined(self, later: Stretch) -> Stretch:
        """Return a stretch that goes on with a later one: where both know a column, the later one is right."""
        if later.begin > self.end:
            # Nothing is known of the columns between them, and a view would take them for empty.
            return later
        held = self.part(self.begin, max(self.begin, later.begin))
        begin = min(self.begin, later.begin) if held.columns else later.begin
        return Stretch(
            self.ranks,
            self.width,
            begin,
            np.concatenate((held.cells, later.cells), axis=2),
            np.concatenate((held.at, later.at), axis=1),
        )

    def part(self, begin: int, end: int) -> Stretch:
        """Return the columns from one number up to another, as far as there are any."""
        begin = min(max(begin, self.begin), self.end)
        where = slice(begin - self.begin, max(begin, min(end, self.end)) - self.begin)
        return Stretch(self.ranks, self.width, begin, self.cells[:, :, where], self.at[:, where])

    def series(self, first: float, last: float, newest: int) -> tuple[npt.NDArray[np.int64], Series]:
        """Return whose each column is, and the columns that end between two steps; none ends after the `newest`."""
        ends = np.minimum((np.arange(self.begin, self.end) + 1) * float(self.width), newest)
        rows, columns = np.nonzero((self.cells[3] > 0) & (ends >= first) & (ends <= last))
        mean, low, high, count = self.cells[:, rows, columns].astype(np.float64)
        return self.ranks[rows], Series(ends[columns], self.at[rows, columns], mean, low, high, count)

    def window(self, last: int, count: int) -> Cells:
        """Return the means of `count` columns up to number `last`, NaN where nothing is known."""
        found = np.full((len(self.ranks), count), np.nan, np.float32)
        part = self.part(last - count + 1, last + 1)
        offset = part.begin - (last - count + 1)
        if part.columns:
            found[:, offset : offset + part.columns] = part.cells[0]
        return found


def nothing() -> tuple[Whole, Series]:
    """Return numbers over the steps of which none is known."""
    return np.empty(0, np.int64), joined(())


def unknown(ranks: int, columns: int) -> Cells:
    """Return numbers over time of which none is known."""
    return np.full((ranks, columns), np.nan, np.float32)


def stretch_of(query: wire.History, ranks: Sequence[int], answer: Sequence[wire.HistoryAnswer]) -> Stretch | None:
    """Return the parts of an answer together; None where there are none, or they cannot be of one answer."""
    asked = query.metric, query.by
    parts = [each for each in answer if isinstance(each, wire.HistoryPart) and (each.metric, each.by) == asked]
    if not parts:
        return None
    width, begin = parts[0].width, min(part.begin for part in parts)
    end = max(part.begin + part.columns for part in parts)
    if (end - begin) * len(ranks) * len(_TABLES) > MOST_CELLS or any(part.width != width for part in parts):
        return None
    cells = np.full((len(_TABLES), len(ranks), end - begin), np.nan, np.float32)
    cells[3] = 0
    at = np.full((len(ranks), end - begin), np.nan)
    wanted = np.array(ranks, np.int64)
    for part in parts:
        table = table_of(part)
        rows = np.searchsorted(wanted, table.ranks)
        known = rows < len(wanted)
        known[known] = wanted[rows[known]] == table.ranks[known]
        columns = slice(part.begin - begin, part.begin - begin + part.columns)
        for index, name in enumerate(_TABLES):
            cells[index, rows[known], columns] = getattr(table, name)[known]
        at[rows[known], columns] = table.at[known]
    return Stretch(wanted, width, begin, cells, at)
