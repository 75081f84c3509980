"""Questions about the history of a run, of which no more is asked than what is in sight.

Views read what is there and never wait. What they read stays in sight for a moment; `Asked.wanted` returns the
questions whose answers are missing, too coarse or a moment old, and whoever has the connection sends them and hands the
answers to `Asked.take`.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

import msgspec

from ddptop.agent import wire
from ddptop.agent.record.history.question import Question

EDGE_S: Final = 0.5
"""Seconds between two questions about what comes at the right edge."""
SIGHT_S: Final = 3.0
"""What was not read for so long is out of sight, and is not asked for any more."""
ANSWER_S: Final = 5.0
"""A question that is not answered by then is asked again."""
HELD: Final = 12
"""What is held beside what is in sight: so much of what was in sight before."""
MOST_PARTS: Final = 512
"""Parts of one answer; further ones are left out."""
ALL_RANKS: Final = 64
"""Of so many ranks all are asked for together; of more, those in sight."""
FAR: Final = 1 << 53
"""A step, or a second, after all others."""

Source = Callable[[Question], Iterable[wire.HistoryAnswer]]
"""Answers a question at once: the file of a run that has ended."""


class Sight(ABC):
    """A part of the history that a view reads."""

    kind = ""
    read_at = -math.inf
    """When it was read last."""
    asked_at = -math.inf
    answered = False

    @abstractmethod
    def question(self, now: float) -> Question | None:
        """Return what is to be asked now, None where there is nothing."""

    @abstractmethod
    def take(self, query: Question, answer: list[wire.HistoryAnswer]) -> None:
        """Take in a whole answer, its last part a `Reply`."""

    @abstractmethod
    def forget(self) -> None:
        """Ask again for all that is read: what was answered is of a part of the record."""

    @property
    def is_whole(self) -> bool:
        """False while a first answer about what is read is awaited."""
        return self.answered


_Seen = TypeVar("_Seen", bound=Sight)


@dataclass
class _UnderWay:
    """A question that was sent."""

    sight: Sight | None
    query: Question
    asked_at: float
    answer: list[wire.HistoryAnswer] = field(default_factory=list)


class Asked:
    """What an onlooker has asked of a run's history; used by one thread."""

    def __init__(self, world: int, clock: Callable[[], float] = time.monotonic, source: Source | None = None) -> None:
        """Ask nothing yet; a `source` in this process answers at once."""
        self.world = world
        self.clock = clock
        self.extent: wire.Extent | None = None
        """How far the run has come, as it was answered last."""
        self.problem = ""
        """Why the last question was not answered."""
        self.records = 0
        """Another number says that there is something new to draw."""
        self.has_ended = False
        """True where nothing is added to the history any more."""
        self._source = source
        self._sights: dict[object, Sight] = {}
        """The one that was read last at the end."""
        self._under_way: dict[int, _UnderWay] = {}
        self._number = 0
        self._asked_at = -math.inf

    @property
    def is_final(self) -> bool:
        """True where nothing is added to the history any more, and all of it can be read."""
        return self.has_ended and self.extent is not None and self.extent.complete

    # Asking

    def look(self, key: object, make: Callable[[], _Seen]) -> _Seen:
        """Return a part of the history, to be read now; `make` it at first."""
        now = self.clock()
        hidden = [each for each, other in self._sights.items() if now - other.read_at > SIGHT_S and each != key]
        for each in hidden[: max(0, len(self._sights) - HELD)]:
            del self._sights[each]
        sight = self._sights.pop(key, None) or make()
        self._sights[key] = sight
        return cast(_Seen, sight)

    def wanted(self) -> list[Question]:
        """Return the questions to be sent now, each once."""
        now = self.clock()
        self._under_way = {id: each for id, each in self._under_way.items() if now - each.asked_at <= ANSWER_S}
        waiting = [each.sight for each in self._under_way.values()]
        found = []
        for sight in self._in_sight():
            if sight not in waiting and (query := sight.question(now)) is not None:
                found.append(self._ask(sight, query))
        if not self.is_final and now - self._asked_at >= EDGE_S and not self._awaits_extent:
            # How far the run has come is known, also while nobody looks back.
            found.append(self._ask(None, wire.History(0, ranks=())))
        return found

    @property
    def _awaits_extent(self) -> bool:
        return any(isinstance(each.query, wire.History) for each in self._under_way.values())

    def _in_sight(self) -> Iterator[Sight]:
        now = self.clock()
        return (each for each in self._sights.values() if now - each.read_at <= SIGHT_S)

    def _ask(self, sight: Sight | None, query: Question) -> Question:
        self._number += 1
        now = self.clock()
        if isinstance(query, wire.History):
            self._asked_at = now
        if sight is not None:
            sight.asked_at = now
        query = msgspec.structs.replace(query, id=self._number)
        self._under_way[self._number] = _UnderWay(sight, query, now)
        return query

    def end(self, source: Source | None = None) -> None:
        """Ask once more for what is looked at, and then no more: the run has ended, and nothing is added to it.

        The `source` answers instead of the observer, which has gone; without one nothing is recorded.
        """
        self._source = source or self._source
        if not self.has_ended:
            self.has_ended = True
            self.lose()
            for sight in self._sights.values():
                sight.forget()

    def lose(self) -> None:
        """Ask again for what is under way: the connection is another one."""
        self._under_way.clear()
        self._asked_at = -math.inf

    def ask_source(self) -> None:
        """Have the run's file answer, where it has ended."""
        for query in self.wanted() if self._source is not None else ():
            for part in self._source(query) if self._source is not None else ():
                self.take(part)

    # Answers

    def take(self, part: wire.HistoryAnswer) -> bool:
        """Take in a part of an answer, and return whether it was one to a question of this history."""
        under_way = self._under_way.get(part.id)
        if under_way is None:
            return False
        if not isinstance(part, wire.Reply):
            if len(under_way.answer) < MOST_PARTS:
                under_way.answer.append(part)
            return True
        del self._under_way[part.id]
        if isinstance(under_way.query, wire.History):
            self.problem = "" if part.done else part.text
        for each in under_way.answer[:1]:
            if isinstance(each, wire.Extent):
                self._take_extent(each)
        if under_way.sight is not None:
            under_way.sight.answered = True
            under_way.sight.take(under_way.query, [*under_way.answer, part])
        return True

    def _take_extent(self, extent: wire.Extent) -> None:
        before, self.extent = self.extent, extent
        if before is None or (before.newest, before.complete) != (extent.newest, extent.complete):
            self.records += 1
        if before is not None and extent.complete and not before.complete:
            # What was answered before this was of a part of the history.
            for sight in self._sights.values():
                sight.forget()

    @property
    def is_read(self) -> bool:
        """False while the observer itself has not read all."""
        return self._is_unanswerable or (self.extent is not None and self.extent.complete)

    def is_answered(self, kind: str = "") -> bool:
        """Return False while a first answer about something in sight is awaited, of one kind or of any."""
        return self._is_unanswerable or all(each.is_whole for each in self._in_sight() if kind in ("", each.kind))

    @property
    def _is_unanswerable(self) -> bool:
        """True where nothing is recorded, and nobody is left to ask."""
        return self.has_ended and self._source is None
