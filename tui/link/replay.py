"""What is recorded of a run, brought into its store: first what it is like now, then what plots look back at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.observer.record import recording
from ddptop.agent.run.rundir import ENDED_STATES
from ddptop.tui.model.store import Store

if TYPE_CHECKING:
    from ddptop.agent.observer.history.kept import Kept

RECENT_RECORDS: Final = 8192
"""Messages of an ended run that its numbers are made of; what is older only plots look back at."""


class Replay:
    """The recording of one run, which is read once and bit by bit."""

    def __init__(self, database: Path | None, store: Store, clock: Callable[[], float], *, ended: bool) -> None:
        """Begin to read a recording, None where none may be read; the `clock` is that of the deadlines."""
        self._kept: Kept | None = None
        self._store = store
        self._clock = clock
        self._ended = ended
        self._generation = 0
        self._newest: Iterator[wire.Telemetry | wire.Verdict] | None = None
        """What is recorded of the run as a whole and of its end."""
        self._earlier: Iterator[wire.Telemetry] | None = None
        """Recorded steps, for those who look back."""
        if database is not None:
            self._newest = self._recorded(database)
            if store.history is not None and store.history.asked is None:
                self._earlier = recording.read_steps(database)
        # What is recorded by then reaches up to what the ranks themselves still tell.
        self._earlier_due = clock() + 2 * recording.BATCH_S

    @property
    def is_current(self) -> bool:
        """True once what the present numbers are made of has been taken in."""
        return self._newest is None

    @property
    def is_whole(self) -> bool:
        """True once the steps of before have been taken in, where somebody looks back."""
        return self._earlier is None and (self._kept is None or self._kept.complete)

    def keep(self, kept: Kept) -> None:
        """Read on in the history of a run that has ended, where somebody looks back."""
        self._kept = kept

    def know(self, *, ended: bool, generation: int) -> None:
        """Take in how the run is by now."""
        self._ended = ended
        self._generation = generation

    def take(self, deadline: float) -> None:
        """Take in what the present numbers are made of."""
        if self._newest is None:
            return
        for message in self._newest:
            if isinstance(message, wire.Verdict):
                self._store.recall_verdict(message)
            else:
                self._store.recall(message, time())
            if self._clock() > deadline:
                return
        self._newest = None

    def _recorded(self, database: Path) -> Iterator[wire.Telemetry | wire.Verdict]:
        """Yield what of the recording the observer does not tell: of a live run, what happened, and how each
        rank was at last, because one that is stopped or busy tells nothing.
        """
        if self._ended:
            yield from recording.read_ranks(database)
            yield from recording.read_end(database)
            yield from recording.read_events(database)
            yield from self._verdicts(database)
            yield from recording.read_newest_steps(database, RECENT_RECORDS)
            return
        if self._generation:
            # What was before a restart is known to the record alone.
            yield from filter(self._is_earlier, recording.read_ranks(database))
            yield from filter(self._is_earlier, recording.read_steps(database))
        yield from (hello for hello in recording.read_ranks(database) if not self._is_earlier(hello))
        yield from (message for message in recording.read_end(database) if isinstance(message, wire.Beat))
        yield from recording.read_events(database)
        yield from self._verdicts(database)

    def _verdicts(self, database: Path) -> Iterator[wire.Verdict]:
        """Yield the recorded verdicts; one that went on when the run ended goes on."""
        state = self._store.group if self._ended else None
        for verdict in recording.read_verdicts(database):
            until = verdict.until_at_ns
            # The observer ends those that still go on after it has told its last state of the run.
            at_end = state is not None and state.state in ENDED_STATES and until is not None and until >= state.at_ns
            yield msgspec.structs.replace(verdict, until_at_ns=None) if at_end else verdict

    def _is_earlier(self, message: wire.Telemetry) -> bool:
        return isinstance(message, wire.Hello | wire.Steps) and message.generation < self._generation

    def take_earlier(self, deadline: float) -> None:
        """Take in the steps of before, once what is needed at once is there."""
        history = self._store.history
        if self._kept is not None:
            if self._newest is None:
                self._kept.advance(deadline, self._clock)
            if history is not None and history.asked is not None:
                history.asked.ask_source()
        if history is None or self._earlier is None or self._newest is not None:
            return
        if not self._ended and self._clock() < self._earlier_due:
            return
        # After a restart they are there already.
        for message in self._earlier if not self._generation else ():
            if isinstance(message, wire.Steps):
                history.take_earlier(message)
            if self._clock() > deadline:
                return
        self._earlier = None
        history.complete_earlier()
