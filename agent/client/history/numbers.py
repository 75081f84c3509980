"""Numbers of the ranks over the steps and over time, as far as they were asked for.

Numbers at the right edge are asked for anew every half second, a few columns of each. What is answered is put together
when it is read first: NumPy is imported only then, and a screen paints before that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.client.history.asked import ALL_RANKS, EDGE_S, FAR, Asked, Sight
from ddptop.agent.wire.steps.numbers import WIDTHS_S, columns_for

if TYPE_CHECKING:
    from ddptop.agent.client.history.stretches import Stretch
    from ddptop.agent.record.history.question import Question
    from ddptop.agent.record.history.series import Cells, Series, Whole

COLUMNS: Final = 512
"""Columns that are asked for: a plot has no more."""
FEW: Final = 16
"""Ranks in sight of a large group up to which these alone are asked for."""
AGAIN_S: Final = 15.0
"""Numbers over time are asked for anew, because a step that took long belongs to all the seconds that it took."""
READING_S: Final = 1.0
"""The same for all numbers while the observer itself is still reading the history."""
_EDGE: Final = 8
"""Columns over time that are asked for again with the right edge."""
_SOON: Final = 64
"""Columns that may be missing at the right edge until it is asked for again; where more are, that is at once."""
_MOST: Final = 4096
_LOOKED_UP: Final = 64
"""Buckets in which the number of the step is looked up, one by one."""

Key = tuple[str, str, int, tuple[int, ...] | None]
"""What is asked for: `step` or `time`, the number, the width of a column over time, and the ranks, None for all."""


class Numbers(Sight):
    """One number of some ranks."""

    def __init__(self, asked: Asked, key: Key) -> None:
        """Read nothing yet."""
        self.kind, self._metric, self._width, self.ranks = key
        self._asked = asked
        self.first = self.last = 0
        """Steps or seconds that are read."""
        self._stretches: list[Stretch] = []
        """The one that was answered last at the end: of the whole run, and of what is zoomed into."""
        self._early: list[tuple[wire.History, list[wire.HistoryAnswer]]] | None = []
        """Answers before it was read first."""
        self._asked_for: tuple[int, int, int] | None = None
        """First, last and width of the newest stretch."""
        self._edge_at = self._whole_at = -math.inf
        self._is_edge = False
        """True where the last question is about the right edge of the newest stretch."""

    def expect(self, first: int, last: int) -> None:
        """Ask for a part before it is read."""
        self.first, self.last, self.read_at = first, last, self._asked.clock()

    def read(self, first: int, last: int) -> list[Stretch]:
        """Return what is held, and ask for this part from now on."""
        now = self._asked.clock()
        if self.kind == "time" and now - self.read_at < EDGE_S:
            # Two readers of the same: one of them looks at a part.
            first, last = min(first, self.first), max(last, self.last)
        self.first, self.last, self.read_at = first, last, now
        early, self._early = self._early or (), None
        for query, answer in early:
            self.take(query, answer)
        self._asked.ask_source()
        return self._stretches

    # Asking

    def question(self, now: float) -> Question | None:
        """Return the question whose answer is missing, too coarse or a moment old."""
        if self._early:
            # Nobody has read yet what was answered.
            return None
        most = COLUMNS if self.kind == "step" else _MOST
        query = wire.History(
            0, self._metric, self.ranks, self.first, self.last, self.kind, most, max(1, self._width)
        )  # fmt: skip
        self._is_edge = False
        if self._is_whole_due(now):
            self._whole_at = self._edge_at = now
            return query
        if not self._stretches or self._asked.is_final or not self._is_edge_due(now):
            return None
        self._is_edge, self._edge_at, newest = True, now, self._stretches[-1]
        last = FAR if self.kind == "step" and self.last >= self._newest else self.last
        return msgspec.structs.replace(query, first=self._edge, last=last, most=_MOST, width=newest.width)

    def _is_whole_due(self, now: float) -> bool:
        age_s = now - self._whole_at
        if not self._covers():
            # Of a number that nobody has told of yet there is nothing that would cover anything.
            return not self.answered or bool(self._stretches) or age_s >= EDGE_S
        if self._asked.is_final:
            return False
        if not self._stretches:
            return age_s >= EDGE_S
        if not self._asked.is_read:
            return age_s >= READING_S
        if self.kind == "time":
            return age_s >= AGAIN_S
        return self._is_edge_due(now) and self._stretches[-1].columns > 2 * COLUMNS

    def _is_edge_due(self, now: float) -> bool:
        is_due = now - self._edge_at >= EDGE_S or self._missing > _SOON
        return is_due and self.last >= self._edge

    def _covers(self) -> bool:
        """Say whether the newest stretch is of what is read now, and as fine as it can be."""
        if self._asked_for is None:
            return False
        from ddptop.agent.record.history.columns import stride_of

        first, last, width = self._asked_for
        if self.kind == "step" and width > stride_of(self.first, self.last, COLUMNS):
            return False
        goes_on = bool(self._stretches) and self._missing <= (0 if self._asked.has_ended else COLUMNS)
        return first <= self.first and (last >= self.last or goes_on)

    @property
    def _newest(self) -> int:
        """The last step of any rank."""
        return 0 if self._asked.extent is None else self._asked.extent.newest

    @property
    def _missing(self) -> int:
        """Columns that are read, and are right of the newest stretch."""
        newest = self._stretches[-1]
        last = self.last if self.kind == "time" else min(self.last, self._newest) - 1
        return last // newest.width - newest.end + 1

    @property
    def _edge(self) -> int:
        """The first step or second of the newest stretch that may have changed since it was answered."""
        newest = self._stretches[-1]
        if self.kind == "time":
            return max(newest.begin, newest.end - _EDGE) * newest.width
        return max(newest.begin, newest.end - 2) * newest.width + 1

    def forget(self) -> None:
        """Ask again for all that is read."""
        self._asked_for, self._whole_at = None, -math.inf

    # Answers

    def take(self, query: Question, answer: list[wire.HistoryAnswer]) -> None:
        """Take in a whole answer; before anybody has read anything it waits."""
        if not isinstance(query, wire.History):
            return
        if self._early is not None:
            self._early.append((query, answer))
            return
        from ddptop.agent.client.history.stretches import stretch_of
        from ddptop.agent.record.history.columns import stride_of

        ranks = range(self._asked.world) if self.ranks is None else self.ranks
        reply = answer[-1]
        is_done = isinstance(reply, wire.Reply) and reply.done
        stretch = stretch_of(query, ranks, answer) if is_done else None
        if self._is_edge:
            if stretch is not None and self._stretches:
                self._join(stretch)
            return
        self._asked.records += 1
        extent, width = self._asked.extent, query.width
        if extent is not None and self.kind == "step":
            first = max(query.first, extent.first, 1)
            width = stride_of(first, max(first, min(query.last, extent.last)), COLUMNS)
        self._asked_for = query.first, query.last, width
        if self.kind == "time":
            self._stretches = [] if stretch is None else [stretch]
        elif stretch is not None:
            # A coarse one of all, and the one that is looked at.
            self._stretches = [*[each for each in self._stretches if each.width > stretch.width][-1:], stretch]

    def _join(self, edge: Stretch) -> None:
        newest = self._stretches[-1]
        if newest.width != edge.width:
            # It has come so far meanwhile that its columns would be too many.
            self._asked_for = None
            return
        longer = newest.joined(edge)
        if longer.end > newest.end:
            # The extent may have told of these steps before, while this number was out of sight.
            self._asked.records += 1
        if self.kind == "time":
            longer = longer.part(self.first // longer.width - _EDGE, longer.end)
            self._asked_for = longer.begin * longer.width, self.last, longer.width
        self._stretches[-1] = longer


class _Asked:
    """Numbers of one kind, for the views."""

    kind = ""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    @property
    def complete(self) -> bool:
        """False while a first answer about what is in sight is awaited."""
        return self._asked.is_answered(self.kind)

    def _look(self, metric: str, ranks: Sequence[int] | None, width: int = 0) -> Numbers:
        together = ranks is None or len(ranks) > FEW or self._asked.world <= ALL_RANKS
        key: Key = self.kind, metric, width, None if together or ranks is None else tuple(sorted(set(ranks)))
        return self._asked.look(key, lambda: Numbers(self._asked, key))


class AskedSteps(_Asked):
    """The numbers of all ranks over the steps."""

    kind = "step"

    def begin(self) -> None:
        """Ask for what a plot shows at first, before there is one."""
        if self._asked.world <= ALL_RANKS:
            self._look("loss", None).expect(1, FAR)

    @property
    def names(self) -> Sequence[str]:
        """Values given by the script, in the order in which they came."""
        return () if self._asked.extent is None else self._asked.extent.names

    @property
    def problem(self) -> str:
        """Why the last question was not answered; empty where it was."""
        return self._asked.problem

    @property
    def refused(self) -> int:
        """Values left out because there were too many names."""
        return 0 if self._asked.extent is None else self._asked.extent.refused

    @property
    def records(self) -> int:
        """Another number says that there is something new to draw."""
        return self._asked.records

    @property
    def complete(self) -> bool:
        """False while an answer is awaited, or the observer itself has not read all."""
        return super().complete and self._asked.is_read

    @property
    def last(self) -> int:
        """The last step of any rank, 0 before there was one."""
        return 0 if self._asked.extent is None else self._asked.extent.newest

    def span(self, rank: int) -> tuple[int, int] | None:
        """Return the first and the last step of the run, None where there is none."""
        extent = self._asked.extent
        return None if extent is None or not extent.newest else (max(1, extent.first), extent.newest)

    def read(self, rank: int, metric: str, first: float = 0, last: float = math.inf) -> Series:
        """Return a metric of a rank between two steps."""
        whose, series = self.read_many([rank], metric, first, last)
        return series.part(whose == rank)

    def read_many(self, ranks: Sequence[int], metric: str, first: float, last: float) -> tuple[Whole, Series]:
        """Return whose each column is, and a metric of these ranks, maybe of others too."""
        from ddptop.agent.client.history.stretches import nothing

        found = self._look(metric, ranks).read(max(1, math.floor(first)), math.ceil(min(last, FAR)))
        if not found:
            return nothing()
        coarse, newest = found[0], found[-1]
        # At the right edge a little is missing until the next answer.
        missing = min(last, self.last) - newest.end * newest.width
        fits = newest.begin * newest.width < first and 4 * missing <= last - first
        return (newest if fits else coarse).series(first, last, self.last)


class AskedTime(_Asked):
    """The numbers of all ranks over time."""

    kind = "time"

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self.world = asked.world
        self.columns = columns_for(asked.world)

    def bucket(self, level: int, at: float) -> int:
        """Return the number of the bucket that a moment (s since the epoch) is in."""
        return int(at // WIDTHS_S[level])

    def knows(self, level: int, bucket: int) -> bool:
        """Say whether any rank has completed a step in a bucket."""
        numbers = self.window("number", level, bucket, 1)
        # What is not known is not equal to itself.
        return bool((numbers == numbers).any())

    def window(self, metric: str, level: int, last: int, count: int, rank: int | None = None) -> Cells:
        """Return a number over the `count` buckets up to number `last`, a row a rank: times in ms, NaN: not known."""
        from ddptop.agent.client.history.stretches import unknown

        count = max(0, min(count, self.columns))
        width = WIDTHS_S[level]
        numbers = self._look(metric, None if rank is None else (rank,), width)
        # The number of the step is looked up bucket by bucket.
        begin = last - max(count, _LOOKED_UP if metric == "number" else 0) + 1
        found = numbers.read(max(0, begin * width), max(0, (last + 1) * width - 1))
        if not found:
            return unknown(self.world if rank is None else 1, count)
        cells = found[-1].window(last, count)
        return cells[rank : rank + 1] if rank is not None and numbers.ranks is None else cells
