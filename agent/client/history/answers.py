"""Answers of the history of a run, for whoever waits for each before the next question."""

from __future__ import annotations

import math
import time
from typing import Final

import numpy as np

from ddptop.agent import wire
from ddptop.agent.client.history.asked import Sight
from ddptop.agent.client.history.columns import Columns
from ddptop.agent.client.history.stretches import MOST_CELLS, stretch_of
from ddptop.agent.client.runs import RunDirError
from ddptop.agent.client.watch import Watch
from ddptop.agent.record.history.columns import fold, stride_of
from ddptop.agent.record.history.question import Question

_ANSWER_S: Final = 30.0
"""Seconds in which an observer has to answer all questions."""
_POLL_S: Final = 0.005


class _Once(Sight):
    """One question, in sight until it is answered."""

    def __init__(self, query: Question) -> None:
        self._query = query
        self.answer: list[wire.HistoryAnswer] = []

    def question(self, now: float) -> Question | None:
        return None if self.answered else self._query

    def take(self, query: Question, answer: list[wire.HistoryAnswer]) -> None:
        self.answer, self.read_at = answer, -math.inf

    def forget(self) -> None:
        self.answered = False


class Answers:
    """What the history of one run answers."""

    def __init__(self, watch: Watch, world: int) -> None:
        """Ask for the extent of the run.

        Args:
            watch: the run, with a history, of which a frame was seen.
            world: number of its ranks.

        Raises:
            RunDirError: nothing is recorded, or the record cannot be read.
        """
        assert watch.history is not None
        self._watch, self._asked, self._world = watch, watch.history.asked, world
        self._until = time.monotonic() + _ANSWER_S
        (extent, *_) = self.ask(wire.History(0, ranks=()))
        assert isinstance(extent, wire.Extent)
        self.first = max(1, extent.first)
        """The first step that is recorded."""
        self.last = extent.newest
        """The newest step; 0: there is none."""
        self.most = max(1, MOST_CELLS // 4 // world)
        """Columns of all ranks for which an answer has room."""

    def ask(self, query: Question) -> list[wire.HistoryAnswer]:
        """Return the whole answer.

        Raises:
            RunDirError: there is none, or it says that the record cannot be read.
        """
        name = self._watch.run.name
        sight = self._asked.look(query, lambda: _Once(query))
        while not sight.answered:
            sight.read_at = math.inf
            self._watch.poll()
            self._watch.frame()
            if sight.answered:
                break
            if self._asked.is_answered():
                raise RunDirError(f"run {name}: nothing of its steps is recorded")
            if time.monotonic() > self._until:
                raise RunDirError(f"run {name}: its history was not answered in {_ANSWER_S:.0f} s; try again")
            time.sleep(_POLL_S)
        reply = sight.answer[-1]
        if isinstance(reply, wire.Reply) and not reply.done:
            raise RunDirError(f"run {name}: {reply.text}")
        return sight.answer

    def columns(self, metric: str, first: int, last: int, most: int) -> Columns:
        """Return a number of all ranks from one step to another, in at most so many columns.

        Raises:
            RunDirError: see `ask`.
        """
        query, ranks = wire.History(0, metric, None, first, last, "step", most), range(self._world)
        stretch = stretch_of(query, ranks, self.ask(query))
        if stretch is None:
            return Columns(np.empty(0), *[np.empty((self._world, 0))] * 5)
        whose, series = stretch.series(first, last, last)
        return fold(ranks, whose, series, first, last, max(stretch.width, stride_of(first, last, most)))
