"""The history of the run behind a wall: an error of it costs history, and never the relay.

It is read from the run's file once, so that an observer goes on with that of the one before, and is written there once
a minute and at the end. The file is read on a thread of its own (`history.reading`); what comes meanwhile waits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ddptop.agent import wire
from ddptop.agent.observer.history.reading import Reading
from ddptop.agent.observer.record.recorder import Recorder
from ddptop.agent.observer.record.recording import Row
from ddptop.agent.run import generations
from ddptop.agent.run.identity import Process

if TYPE_CHECKING:
    from ddptop.agent.observer.history.kept import Kept
    from ddptop.agent.observer.history.saved import Saving

READ_S: Final = 0.02
"""Seconds that one `advance` takes in what is recorded of before."""
_LAST_S: Final = 1.0
"""The same at the end."""
_EARLY: Final = 20_000
"""Messages that wait until the history was opened, at most."""
_AGAIN_S: Final = 1.0
"""Seconds between two attempts to open the history."""
_MOST_PROBLEMS: Final = 20
"""Errors after which no history is kept any more."""


class LookingBack:
    """The history that is kept, saved and asked for; used by the relay's thread."""

    def __init__(
        self,
        database: Path,
        world: int,
        recorder: Recorder,
        report: Callable[[str, str], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        began_at_ns: int = 0,
    ) -> None:
        self.faults = 0
        self._database = database
        self._world = world
        self._recorder = recorder
        self._report = report
        self._clock = clock
        self._began_at_ns = began_at_ns
        self._kept: Kept | None = None
        self._reading: Reading | None = None
        self._open_at = 0.0
        """When the history may be opened."""
        self._early: deque[Callable[[Kept], None]] = deque(maxlen=_EARLY)
        """What came before the history was opened."""
        self._saving: Saving | None = None
        self._processes: dict[int, tuple[int, Process]] = {}
        """By rank, generation and process."""
        self._save_at = 0.0
        self._last: Callable[[int], list[Row]] | None = None
        """What is written at the end."""
        self._handed = False
        """A snapshot is with the recorder, which has not written it yet: on a disk that hangs they must not pile up."""

    def meet(self, rank: int, generation: int, process: Process) -> None:
        """Take note of the process of a rank: another one of the same generation counts its steps from one again."""
        before = self._processes.get(rank)
        self._processes[rank] = generation, process
        if before is not None and before[0] == generation and before[1] != process:
            self._take(lambda kept: kept.forget(rank))

    def steps(self, message: wire.Steps) -> None:
        """Take in records of a rank, in order."""
        if (kept := self._opened()) is None:
            self._keep_early(lambda kept: kept.steps(message.rank, message.steps, message.generation))
            return
        try:
            kept.steps(message.rank, message.steps, message.generation)
        except Exception as error:  # a wall, as below
            self._fault(error)

    def note(self, message: wire.Telemetry) -> None:
        """Take in a summary or a sign of life."""
        if type(message) is not wire.Summary and type(message) is not wire.Beat:
            return
        if (kept := self._opened()) is None:
            self._keep_early(lambda kept: _note(kept, message))
            return
        try:
            _note(kept, message)
        except Exception as error:  # a wall, as below
            self._fault(error)

    @property
    def is_reading(self) -> bool:
        """True while recorded steps are to be read from the file."""
        if self.faults >= _MOST_PROBLEMS:
            return False
        return self._reading is not None if self._kept is None else not self._kept.complete

    def advance(self) -> None:
        """Take in what was read of the file and is not in the history, and save what has changed, when due."""
        self._guarded(lambda kept: kept.advance(self._clock() + READ_S, self._clock))
        if self._clock() >= self._save_at and not self._handed:
            self._guarded(lambda kept: self._save(kept))

    def finish(self, *, over: bool) -> None:
        """Take in the last of it; `over` where the run has ended, and nothing comes after it."""
        until = time.monotonic() + _LAST_S
        self._guarded(lambda kept: kept.advance(until))
        while self.is_reading and self._reading is not None and (left := until - time.monotonic()) > 0:
            self._reading.wait(left)
            self._guarded(lambda kept: kept.advance(until))
        self._guarded(lambda kept: self._save(kept, whole=over, at_end=True))
        self.close()

    def close(self) -> None:
        """End the reading of the file, which may take a moment longer."""
        if self._reading is not None:
            self._reading.stop()

    def save_last(self) -> None:
        """Write what `finish` has taken in; for any thread, after it."""
        if self._last is not None:
            self._recorder.save(self._last, self._failed)

    def answer(self, query: wire.History) -> Iterator[wire.HistoryAnswer]:
        """Yield the answer to a question."""
        found: list[wire.HistoryAnswer] = []

        def ask(kept: Kept) -> None:
            from ddptop.agent.observer.history.answers import answer

            found.extend(answer(kept, query))

        self._guarded(ask)
        if self._kept is None and self.faults < _MOST_PROBLEMS:
            found = [wire.Extent(query.id, complete=False), wire.Reply(query.id, True)]
        if not found or not isinstance(found[-1], wire.Reply):
            found = [wire.Reply(query.id, False, "the observer keeps no history: see its events")]
        yield from found

    def _save(self, kept: Kept, *, whole: bool = False, at_end: bool = False) -> None:
        from ddptop.agent.observer.history.saved import SAVE_S, Saving

        if self._saving is None:
            self._saving = Saving(kept)
            if not at_end:
                self._save_at = self._clock() + SAVE_S
                return
        saving = self._saving
        if self._handed:
            # At the end it may fail yet, and there is no other attempt.
            saving.fail()
        snapshot = saving.snapshot(whole=whole)
        self._save_at = self._clock() + saving.period_s
        if snapshot is None:
            return
        if at_end:
            self._last = partial(saving.rows, snapshot)
        else:
            self._handed = True
            self._recorder.save(partial(saving.rows, snapshot), self._failed, self._written)

    def _failed(self) -> None:
        if self._saving is not None:
            self._saving.fail()
        # Last: another thread makes the next snapshot as soon as it is so.
        self._handed = False

    def _written(self) -> None:
        self._handed = False

    def _is_possible(self, steps: int) -> bool:
        return generations.can_reach(steps, (time.time_ns() - self._began_at_ns) / 1e9)

    def _take(self, part: Callable[[Kept], None]) -> None:
        """Have a part of the history taken in, now or once it was opened."""
        if self._opened() is None:
            self._keep_early(part)
        else:
            self._guarded(part)

    def _keep_early(self, part: Callable[[Kept], None]) -> None:
        """Have a part of the history wait until it is opened."""
        if self.faults < _MOST_PROBLEMS:
            self._early.append(part)

    def _open(self) -> None:
        """Take the history once it is opened, and what has waited for it."""
        if self._clock() < self._open_at:
            return
        # After a failure not at once again: what is short now may be there in a moment.
        self._open_at = self._clock() + _AGAIN_S
        # NumPy is loaded there, so that neither the start of the run nor a rank waits for it.
        reading, self._reading = self._reading or Reading(self._database, self._world), None
        kept = reading.opened()
        self._reading, self._open_at = reading, 0.0
        if kept is not None:
            kept.possible = self._is_possible
            kept.read_from(reading)
            self._kept = kept
            while self._early:
                self._guarded(self._early.popleft())

    def _guarded(self, part: Callable[[Kept], None]) -> None:
        if (kept := self._opened()) is not None:
            try:
                part(kept)
            except Exception as error:  # a wall: the record and the commands go on
                self._fault(error)

    def _opened(self) -> Kept | None:
        """Return the history, None while it is being opened and where none is kept."""
        if self.faults >= _MOST_PROBLEMS:
            return None
        if self._kept is None:
            try:
                self._open()
            except Exception as error:  # a wall, as above
                self._fault(error)
        return self._kept

    def _fault(self, error: Exception) -> None:
        self.faults += 1
        if self.faults in (1, _MOST_PROBLEMS):
            rest = "" if self.faults == 1 else "; no history is kept any more"
            self._report(f"history: {error!r:.200}{rest}", "warning")
        if self.faults == _MOST_PROBLEMS:
            self._early.clear()
            self.close()


def _note(kept: Kept, message: wire.Summary | wire.Beat) -> None:
    if type(message) is wire.Summary:
        kept.summary(message)
    elif type(message) is wire.Beat:
        kept.beat(message)
