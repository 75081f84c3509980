"""What is recorded of a run, brought into its store: first what it is like now, then what plots look back at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.control import journal
from ddptop.agent.observer.model.changes import EVENTS
from ddptop.agent.observer.model.store import Store
from ddptop.agent.observer.record import recording
from ddptop.agent.run.files.database import Locked
from ddptop.agent.run.identity import Process
from ddptop.agent.run.rundir import ENDED_STATES

if TYPE_CHECKING:
    from ddptop.agent.observer.history.kept import Kept
    from ddptop.tui.model.history.history import History

SETTLED_S: Final = 2 * recording.BATCH_S
"""Seconds after which all that had happened is recorded, and all that happens is heard."""
RECENT_RECORDS: Final = 8192
"""Messages of an ended run that its numbers are made of; what is older only plots look back at."""


class Replay:
    """The recording of one run, which is read once and bit by bit."""

    def __init__(
        self,
        find: Callable[[], Path | None],
        store: Store,
        clock: Callable[[], float],
        history: History | None,
        *,
        ended: bool,
    ) -> None:
        """Begin to read a recording, where `find` returns a file; the `clock` is that of the deadlines."""
        self._kept: Kept | None = None
        self._store = store
        self._history = history
        self._clock = clock
        self._ended = ended
        self._find = find
        database = find()
        self._newest = None if database is None else self._recorded(database)
        """What is recorded of the run as a whole and of its end."""
        self._observer: Process | None = None
        self._events_due = math.inf if ended else clock() + SETTLED_S
        """When the newest events are read once more."""

    @property
    def is_current(self) -> bool:
        """True once what the present numbers are made of has been taken in."""
        return self._newest is None

    @property
    def is_whole(self) -> bool:
        """True once the whole history has been read, where somebody looks back on a run that has ended."""
        return self._kept is None or self._kept.complete

    def keep(self, kept: Kept) -> None:
        """Read on in the history of a run that has ended, where somebody looks back."""
        self._kept = kept

    def know(self, *, ended: bool, observer: Process | None) -> None:
        """Take in how the run is by now, and who observes it."""
        if observer != self._observer and not ended:
            self._events_due = self._clock() + SETTLED_S
        has_just_ended = ended and not self._ended and self._store.run.world <= wire.EACH_RECORD
        if has_just_ended and (database := self._find()) is not None:
            # The observer may have left before it told of the last steps.
            self._newest = chain(self._newest or (), recording.read_newest_steps(database, RECENT_RECORDS))
        self._ended, self._observer = ended, observer

    def take_missed_events(self) -> None:
        """Read the newest events again, a while after the beginning and after each change of the observer.

        What happened in the last second before was not in the file yet, and nobody hears what is published until the
        connection is made.
        """
        if self._newest is not None or self._clock() < self._events_due:
            return
        self._events_due = math.inf
        database = self._find()
        if database is None:
            return
        try:
            for event in recording.read_newest_events(database, EVENTS):
                self._store.recall(event, time())
        except Locked:
            self._events_due = self._clock() + SETTLED_S

    def take(self, deadline: float) -> None:
        """Take in what the present numbers are made of."""
        if self._newest is None:
            return
        for message in self._newest:
            if isinstance(message, wire.Verdict):
                self._store.recall_verdict(message)
            else:
                self._store.recall(message, time())
                if self._history is not None:
                    self._history.hear(message)
            if self._clock() > deadline:
                return
        self._newest = None

    def _recorded(self, database: Path) -> Iterator[wire.Telemetry | wire.Verdict]:
        """Yield what of the recording the observer does not tell: of a live run, what happened, and how each
        rank was at last, because one that is stopped or busy tells nothing.
        """
        ended = self._ended
        yield from self._starts(database)
        yield from (each for each in recording.read_end(database) if ended or isinstance(each, wire.Beat))
        events = (each for each in recording.read_events(database) if isinstance(each, wire.Event))
        yield from journal.with_end(events, self._store.run)
        yield from self._verdicts(database)
        if ended:
            yield from recording.read_newest_steps(database, RECENT_RECORDS)

    def _verdicts(self, database: Path) -> Iterator[wire.Verdict]:
        """Yield the recorded verdicts; one that went on when the run ended goes on."""
        state = self._store.group if self._ended else None
        for verdict in recording.read_verdicts(database):
            until = verdict.until_at_ns
            # The observer ends those that still go on after it has told its last state of the run.
            at_end = state is not None and state.state in ENDED_STATES and until is not None and until >= state.at_ns
            yield msgspec.structs.replace(verdict, until_at_ns=None) if at_end else verdict

    def _starts(self, database: Path) -> Iterator[wire.Telemetry]:
        """Yield who the ranks were, one generation after the other, and how far they came in each but the newest."""
        hellos = [hello for hello in recording.read_ranks(database) if isinstance(hello, wire.Hello)]
        newest = max((hello.generation for hello in hellos), default=0)
        for generation, ranks in groupby(hellos, key=attrgetter("generation")):
            yield from ranks
            if generation < newest:
                yield from recording.read_last_steps(database, generation, 2 * self._store.run.world)

    def advance(self, deadline: float) -> None:
        """Read on in the history of a run that has ended, once what is needed at once is there."""
        if self._kept is not None and self._newest is None:
            self._kept.advance(deadline, self._clock)
        if self._history is not None and self._history.begun:
            self._history.asked.ask_source()
