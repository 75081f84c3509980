"""The history as an onlooker has it: what it asked the observer for, no more than is in sight.

Views read what is there and never wait. What they read is remembered for a moment; `Asked.wanted` returns the questions
whose answers are missing, too coarse or a moment old, and whoever has the connection sends them and hands the answers
to `Asked.take`. Numbers at the right edge are asked for anew every half second, a few columns of each.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from ddptop.agent import wire
from ddptop.agent.client.history.first import ALL_RANKS, COLUMNS, first_question
from ddptop.agent.client.history.stretches import MOST_CELLS, Stretch, stretch_of
from ddptop.agent.record.history.columns import stride_of
from ddptop.agent.record.history.series import Cells, Series, joined
from ddptop.agent.wire.numbers import WIDTHS_S, columns_for

EDGE_S: Final = 0.5
"""Seconds between two questions about the right edge."""
SIGHT_S: Final = 3.0
"""What was not read for so long is out of sight, and is not asked for any more."""
ANSWER_S: Final = 5.0
"""A question that is not answered by then is asked again."""
AGAIN_S: Final = 15.0
"""Numbers over time are asked for anew, because a step that took long belongs to all the seconds that it took."""
READING_S: Final = 1.0
"""The same for all numbers while the observer itself is still reading the history."""
FEW: Final = 16
HELD: Final = 12
"""Numbers whose columns are held, those in sight and some that were."""
_EDGE: Final = 8
"""Columns over time that are asked for again with the right edge."""
_SOON: Final = 64
"""Columns that may be missing at the right edge until it is asked for again; where more are, that is at once."""
_FAR: Final = 1 << 53

Source = Callable[[wire.History], Iterable[wire.HistoryAnswer]]
"""Answers a question at once: the file of a run that has ended."""
_Key = tuple[str, str, int, tuple[int, ...] | None]
"""What is asked for: `step` or `time`, the number, the width of a column over time, and the ranks, None for all."""


@dataclass
class _Interest:
    """What is read of a number, and what has been answered of it."""

    first: int = 0
    last: int = 0
    """Steps or seconds that were read last."""
    read_at: float = -math.inf
    stretches: list[Stretch] = field(default_factory=list)
    """The one that was answered last at the end: of the whole run, and of what is zoomed into."""
    answered: bool = False
    asked_for: tuple[int, int, int] | None = None
    """First, last and width of the question about the newest stretch."""
    edge_at: float = -math.inf
    whole_at: float = -math.inf


@dataclass
class _Question:
    """A question that is under way."""

    key: _Key | None
    query: wire.History
    asked_at: float
    edge: bool
    """It is about the right edge of the newest stretch."""
    extent: wire.Extent | None = None
    parts: list[wire.HistoryPart] = field(default_factory=list)
    cells: int = 0


class Asked:
    """The numbers of a run that an onlooker has asked for; used by one thread."""

    def __init__(self, world: int, source: Source | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Ask nothing yet; a `source` in this process, of an ended run, answers at once."""
        self._source = source
        self.world = world
        self.clock = clock
        self._ended = False
        self.extent: wire.Extent | None = None
        """What the observer has, as it said last."""
        self.problem = ""
        """Why the last question was not answered."""
        self.records = 0
        """Another number says that there is something new to draw."""
        self.by_step = AskedSteps(self)
        self.by_time = AskedTime(self)
        self._interests: dict[_Key, _Interest] = {}
        """The one that was read last at the end."""
        self._questions: dict[int, _Question] = {}
        self._number = 0
        self._told_at = -math.inf

    # Asking

    def wanted(self) -> list[wire.History]:
        """Return the questions to be sent now, each once; their numbers are below zero."""
        now = self.clock()
        for number, question in list(self._questions.items()):
            if now - question.asked_at > ANSWER_S:
                del self._questions[number]
        under_way = {question.key for question in self._questions.values()}
        queries = []
        for key, interest in self._interests.items():
            if key not in under_way and now - interest.read_at <= SIGHT_S:
                query = self._question(key, interest, now)
                if query is not None:
                    queries.append(query)
        stale = now - self._told_at >= EDGE_S and not (self._ended and self.extent is not None and self.extent.complete)
        if not queries and not self._questions and stale:
            known = self.extent is not None
            queries.append(self._ask(None, wire.History(0, ranks=()), now) if known else self._begin(now))
        return queries

    def begin(self, sent: wire.History) -> None:
        """Await the answer to the first question, which was sent before there was anything to look at."""
        if self._begin(self.clock()) != sent:
            self.lose()

    def _begin(self, now: float) -> wire.History:
        query = first_question(self.world)
        if query.ranks is not None:
            return self._ask(None, query, now)
        key = query.by, query.metric, 0, None
        self._interests.setdefault(key, _Interest())
        return self._ask(key, query, now)

    def _question(self, key: _Key, interest: _Interest, now: float) -> wire.History | None:
        by, metric, width, ranks = key
        query = wire.History(0, metric, ranks, interest.first, interest.last, by, COLUMNS)
        if by == "time":
            query = msgspec.structs.replace(query, most=4096, width=width)
        else:
            width = stride_of(interest.first, interest.last, COLUMNS)
        if not self._covers(key, interest, width):
            # Of a number that nobody has told of yet there is nothing that would cover anything.
            rests = interest.answered and not interest.stretches and now - interest.whole_at < EDGE_S
            return None if rests else self._ask(key, query, now)
        if self._ended and self.extent is not None and self.extent.complete:
            return None
        reading = self.extent is not None and not self.extent.complete
        if now - interest.whole_at >= (READING_S if reading else AGAIN_S if by == "time" else math.inf):
            return self._ask(key, query, now)
        if not interest.stretches:
            return None if now - interest.whole_at < EDGE_S else self._ask(key, query, now)
        newest = interest.stretches[-1]
        if now - interest.edge_at < EDGE_S and self._missing(by, interest) <= _SOON:
            return None
        first = self._edge_of(by, newest)
        if interest.last < first:
            return None
        if newest.cells.shape[2] > 2 * COLUMNS and by == "step":
            return self._ask(key, query, now)
        follows = by == "step" and interest.last >= self.by_step.last
        last = _FAR if follows else interest.last
        edge = msgspec.structs.replace(query, first=first, last=last, most=4096, width=newest.width)
        return self._ask(key, edge, now, edge=True)

    def _edge_of(self, by: str, newest: Stretch) -> int:
        """Return the first step or second of a stretch that may have changed since it was answered."""
        if by == "time":
            return max(newest.begin, newest.end - _EDGE) * newest.width
        return max(newest.begin, newest.end - 2) * newest.width + 1

    def _covers(self, key: _Key, interest: _Interest, width: int) -> bool:
        """Say whether the newest stretch is of what is read now, and as fine as it can be."""
        if interest.asked_for is None:
            return False
        first, last, fine = interest.asked_for
        if fine > width and key[0] == "step":
            return False
        goes_on = bool(interest.stretches) and self._missing(key[0], interest) <= (0 if self._ended else COLUMNS)
        return first <= interest.first and (last >= interest.last or goes_on)

    def _missing(self, by: str, interest: _Interest) -> int:
        """Return how many columns that are read are right of the newest stretch."""
        newest = interest.stretches[-1]
        last = interest.last if by == "time" else min(interest.last, self.by_step.last) - 1
        return last // newest.width - newest.end + 1

    def _ask(self, key: _Key | None, query: wire.History, now: float, *, edge: bool = False) -> wire.History:
        self._number += 1
        query = msgspec.structs.replace(query, id=-self._number)
        self._questions[query.id] = _Question(key, query, now, edge)
        self._told_at = now
        if key is not None:
            interest = self._interests[key]
            interest.edge_at = now
            if not edge:
                interest.whole_at = now
        return query

    def end(self, source: Source | None = None) -> None:
        """Ask once more for what is looked at, and then no more: the run has ended, and nothing is added to it.

        The `source` answers instead of the observer, which has gone.
        """
        if source is not None:
            self._source = source
        if not self._ended:
            self._ended = True
            self.lose()
            for interest in self._interests.values():
                interest.asked_for = None

    def lose(self) -> None:
        """Ask again for what is under way: the connection is another one."""
        self._questions.clear()
        self._told_at = -math.inf

    # Answers

    def take(self, answer: wire.HistoryAnswer) -> bool:
        """Take in a part of an answer, and return whether it was one to a question of this history."""
        question = self._questions.get(answer.id)
        if question is None:
            return False
        match answer:
            case wire.Extent():
                question.extent = answer
            case wire.HistoryPart():
                question.cells += len(answer.mean) // 4
                if question.cells <= MOST_CELLS and (answer.metric, answer.by) == (
                    question.query.metric, question.query.by,
                ):  # fmt: skip
                    question.parts.append(answer)
            case wire.Reply():
                del self._questions[answer.id]
                self.problem = "" if answer.done else answer.text
                self._conclude(question, done=answer.done)
        return True

    def _conclude(self, question: _Question, *, done: bool) -> None:
        extent = question.extent
        if extent is not None:
            before, self.extent = self.extent, extent
            if before is None or (before.newest, before.complete) != (extent.newest, extent.complete):
                self.records += 1
            if before is not None and extent.complete and not before.complete:
                # What was answered before this was of a part of the history.
                for each in self._interests.values():
                    each.asked_for, each.whole_at = None, -math.inf
        key, query = question.key, question.query
        interest = None if key is None else self._interests.get(key)
        if key is None or interest is None:
            return
        interest.answered = True
        ranks = range(self.world) if query.ranks is None else sorted(set(query.ranks))
        stretch = stretch_of(ranks, question.parts) if done else None
        if question.edge:
            if stretch is not None and interest.stretches:
                if interest.stretches[-1].width != stretch.width:
                    # It has come so far meanwhile that its columns would be too many.
                    interest.asked_for = None
                    return
                newest = interest.stretches[-1]
                longer = newest.joined(stretch)
                if longer.end > newest.end:
                    # The extent may have told of these steps before, while this number was out of sight.
                    self.records += 1
                if key[0] == "time":
                    longer = longer.part(interest.first // longer.width - _EDGE, longer.end)
                    interest.asked_for = longer.begin * longer.width, interest.last, longer.width
                interest.stretches[-1] = longer
            return
        self.records += 1
        width = query.width
        if extent is not None and key[0] == "step":
            first = max(query.first, extent.first, 1)
            width = stride_of(first, max(first, min(query.last, extent.last)), COLUMNS)
        interest.asked_for = query.first, query.last, width
        if stretch is None:
            if key[0] == "time":
                interest.stretches.clear()
            return
        # A coarse one of all, and the one that is looked at.
        held = [each for each in interest.stretches if each.width > stretch.width][-1:] if key[0] == "step" else []
        interest.stretches = [*held, stretch]

    # Reading

    def key_of(self, by: str, metric: str, ranks: Sequence[int] | None, width: int = 0) -> _Key:
        """Return how a number of some ranks is asked for."""
        together = ranks is None or len(ranks) > FEW or self.world <= ALL_RANKS
        return by, metric, width, None if together or ranks is None else tuple(sorted(set(ranks)))

    def read(self, key: _Key, first: int, last: int) -> _Interest:
        """Return what is held, and remember that it is looked at."""
        now = self.clock()
        interest = self._interests.pop(key, None) or _Interest()
        self._interests[key] = interest
        while len(self._interests) > HELD:
            del self._interests[next(iter(self._interests))]
        if key[0] == "time" and now - interest.read_at < EDGE_S:
            # Two readers of the same: one of them looks at a part.
            first, last = min(first, interest.first), max(last, interest.last)
        interest.first, interest.last, interest.read_at = first, last, now
        if self._source is not None:
            self.ask_source()
        return interest

    def ask_source(self) -> None:
        """Ask the history that is in this process, where there is one, for what is wanted."""
        if self._source is None:
            return
        for query in self.wanted():
            for each in self._source(query):
                self.take(each)

    @property
    def complete(self) -> bool:
        """False until what is in sight has been answered once, from a whole history."""
        return self.is_answered("step") and (
            self._is_unanswerable or (self.extent is not None and self.extent.complete)
        )

    @property
    def _is_unanswerable(self) -> bool:
        """True where nothing is recorded, and nobody is left to ask."""
        return self._ended and self._source is None

    def is_answered(self, by: str) -> bool:
        """Return False while a first answer about something in sight is awaited."""
        now = self.clock()
        return self._is_unanswerable or all(
            each.answered for key, each in self._interests.items() if key[0] == by and now - each.read_at <= SIGHT_S
        )

    @property
    def nbytes(self) -> int:
        """Memory of all columns."""
        held = [stretch for interest in self._interests.values() for stretch in interest.stretches]
        return sum(stretch.cells.nbytes + stretch.at.nbytes for stretch in held)


class AskedSteps:
    """The numbers of all ranks over the steps, as far as they were asked for."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

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
        return self._asked.complete

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

    def read_many(
        self, ranks: Sequence[int], metric: str, first: float, last: float
    ) -> tuple[npt.NDArray[np.int64], Series]:
        """Return whose each column is, and a metric of these ranks, maybe of others too."""
        key = self._asked.key_of("step", metric, ranks)
        interest = self._asked.read(key, max(1, math.floor(first)), math.ceil(min(last, _FAR)))
        if not interest.stretches:
            return np.empty(0, np.int64), joined(())
        coarse, newest = interest.stretches[0], interest.stretches[-1]
        # At the right edge a little is missing until the next answer.
        missing = min(last, self.last) - newest.end * newest.width
        fits = newest.begin * newest.width < first and 4 * missing <= last - first
        return (newest if fits else coarse).series(first, last, self.last)


class AskedTime:
    """The numbers of all ranks over time, as far as they were asked for."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self.world = asked.world
        self.columns = columns_for(asked.world)

    @property
    def complete(self) -> bool:
        """False while a first answer about what is in sight is awaited."""
        return self._asked.is_answered("time")

    def bucket(self, level: int, at: float) -> int:
        """Return the number of the bucket that a moment (s since the epoch) is in."""
        return int(at // WIDTHS_S[level])

    def knows(self, level: int, bucket: int) -> bool:
        """Say whether any rank has completed a step in a bucket."""
        return bool(np.isfinite(self.window("number", level, bucket, 1)).any())

    def window(self, metric: str, level: int, last: int, count: int, rank: int | None = None) -> Cells:
        """Return a number over the `count` buckets up to number `last`, a row a rank: times in ms, NaN: not known."""
        count = max(0, min(count, self.columns))
        width = WIDTHS_S[level]
        key = self._asked.key_of("time", metric, None if rank is None else (rank,), width)
        # The number of the step is looked up bucket by bucket.
        begin = last - max(count, _LOOKED_UP if metric == "number" else 0) + 1
        interest = self._asked.read(key, max(0, begin * width), max(0, (last + 1) * width - 1))
        rows = self.world if rank is None else 1
        if not interest.stretches:
            return np.full((rows, count), np.nan, np.float32)
        found = interest.stretches[-1].window(last, count)
        return found[rank : rank + 1] if rank is not None and key[3] is None else found


_LOOKED_UP: Final = 64
