"""The opening of a run: what lives of it has an observer that answers, and what does not is recorded as ended.

Whoever looks on at a run, or asks for something, comes here first.  An observer that is gone gets a successor, one that
is stopped goes on, and one that answers nobody is ended in favor of a successor.  Two observers do not run at once: the
claim in the run directory excludes the second.  A run that has ended needs none, unless ddptop launched it and has to
end processes that are left; only its end is recorded.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from ddptop.agent.control.silence import SILENT_S, Silence
from ddptop.agent.end import processes, survey
from ddptop.agent.launcher import detached
from ddptop.agent.run import identity
from ddptop.agent.run.identity import ELSEWHERE
from ddptop.agent.run.rundir import Member, Process, Run, RunDir, RunDirError, is_alive
from ddptop.agent.wire.frames import ENDED
from ddptop.agent.wire.vocabulary.refusals import Refused

_START_S: Final = 5.0
"""Seconds that the first observer of a run may take to record itself."""
_SUCCESSOR_S: Final = 10.0
"""Seconds that another observer may take to record itself, where somebody waits for it."""
_DIES_S: Final = 1.0
"""Seconds that a process may take to end after SIGKILL."""


class Unobserved(Refused):
    """The observer of a run is gone, and no other one starts."""


def meet(
    directory: RunDir, members: dict[int, Member] | None = None, heard: Collection[int] = frozenset()
) -> survey.Survey:
    """Return the present state of a run, as `survey.look` does, and see to its observer.

    Raises:
        RunDirError: the run has no readable record.
    """
    now = survey.look(directory, members, heard)
    if now.run.state in ENDED:
        return now
    if now.supervised:
        if now.run.observer is not None:
            identity.wake(now.run.observer)
        return now
    if now.ended and not (now.run.launched and processes.find(now.run, now.local)):
        return survey.settle(directory, members, heard)
    if _needs_successor(now) and detached.is_due(directory):
        with contextlib.suppress(OSError):
            _start(directory, now.run)
    return now


def has_ended(directory: RunDir) -> bool:
    """Say whether a run is over, or its record gone; an end that nobody saw is recorded."""
    try:
        return meet(directory).ended
    except RunDirError:
        return True


def await_observer(directory: RunDir, is_cancelled: Callable[[], bool] = lambda: False) -> Run:
    """Return the record of a run, with its present state, once it has an observer to ask, or is over, or is cancelled.

    Raises:
        Unobserved: it has none, and none starts.
        Refused: it is in another container.
        RunDirError: the run has no readable record.
    """
    give_up, is_started = time.monotonic() + _SUCCESSOR_S, False
    while True:
        run = directory.read()
        if run.observer is not None and is_alive(run.observer):
            # No rank is looked up for that.
            identity.wake(run.observer)
            return run
        now = meet(directory)
        if now.supervised or now.ended or is_cancelled():
            return msgspec.structs.replace(now.run, state=now.state)
        if now.cause == ELSEWHERE:
            raise Refused(f"run {run.run} {ELSEWHERE}; run this command in there")
        if not is_started and _needs_successor(now):
            # Whoever asks does not wait until another look is due. One observer too many leaves at once.
            is_started = True
            try:
                _start(directory, run)
            except OSError as problem:
                raise Unobserved(f"its observer is gone, and another one cannot start: {problem.strerror}") from problem
        if time.monotonic() > give_up:
            log = directory.observer_log
            raise Unobserved(f"its observer is gone, and another one does not start: {log} may tell why")
        time.sleep(0.05)


def end_silent(observer: Process | None) -> None:
    """End an observer that answers nobody, so that a successor gets its place; only one of this user.

    Raises:
        Refused: it is not to be ended from here.
    """
    if observer is None:
        return
    refusal = f"its observer (pid {observer.pid}) does not answer, and cannot be ended from here"
    if not _end(observer):
        raise Refused(refusal)
    give_up = time.monotonic() + _DIES_S
    while identity.may_live(observer):
        if time.monotonic() > give_up:
            raise Refused(refusal)
        time.sleep(0.02)


def _end(observer: Process) -> bool:
    """Send an observer of this user SIGKILL; return False where it lives and cannot be ended from here."""
    row = identity.look(observer)
    if row is None:
        return not identity.may_live(observer)
    if row.uid == os.getuid():
        identity.send(observer, signal.SIGKILL)
    return row.uid == os.getuid()


class Patience:
    """That of somebody who listens to the observer of a run: one that says nothing for long is ended."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to listen."""
        self._clock = clock
        self._observer: Process | None = None
        self._silence = Silence(clock)

    def listen(self, observer: Process | None, *, heard: bool) -> None:
        """Take note whether this observer was heard since the last call; each has its own time."""
        if observer != self._observer:
            self._observer, self._silence = observer, Silence(self._clock)
        if self._silence.listen(heard=heard) > SILENT_S:
            self._silence = Silence(self._clock)
            if observer is not None:
                # Whoever listens paints meanwhile, and does not wait until it is gone.
                _end(observer)


def _needs_successor(now: survey.Survey) -> bool:
    """Say whether there is a place for another observer: one in another container would see none of its processes."""
    run = now.run
    # The absolute difference: a date in the future means that the clock was set back since.
    # That of a job which nobody prepared is started by whoever has met it, here.
    starting = run.observer is None and not run.outside and abs(time.time_ns() - run.created_at_ns) < _START_S * 1e9
    return not now.supervised and now.cause != ELSEWHERE and not starting


def _start(directory: RunDir, run: Run) -> None:
    if run.launched:
        # Here, because few looks start one, and its modules are a third of what a look has to import.
        from ddptop.agent.launcher import observers

        observers.start(directory)
        return
    starting = detached.start(directory)
    threading.Thread(target=starting.wait, name="observer-status", daemon=True).start()
