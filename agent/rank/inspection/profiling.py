"""A profile of whole steps of this rank by torch's own profiler, between the boundaries that the observer has chosen.

The training thread begins and ends it, as the profiler belongs to a thread.  Another thread writes the trace: of many
events that takes seconds, in some of which torch holds the interpreter's lock, and the training stands.  Nothing of
torch's profiler is loaded before somebody asks.

A process has one profiler.  Where the script begins its own meanwhile, this one ends before: torch would cancel it, and
crash the process as soon as its trace is written.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ddptop.agent.rank.ahead import Asked, OverSteps, Passed
from ddptop.agent.rank.faults import Faults, describe
from ddptop.agent.rank.hooks.around import replace
from ddptop.agent.rank.records.meter import intervals_of
from ddptop.agent.rank.records.stamps import Stamps, StepStamps
from ddptop.agent.run.files import marks
from ddptop.agent.wire import (
    LARGEST_PROFILE,
    MOST_OF_PROFILE,
    MOST_SPANS,
    PhaseSpan,
    Profile,
    Profiled,
    ProfiledStep,
    ProfilePiece,
)

_TRACE: Final = "rank-{}.json.gz"
_LEVEL: Final = "KINETO_LOG_LEVEL"
_SCRIPTS_OWN: Final = "its script has used the profiler meanwhile"


class _Profile(Asked[int]):
    """One profile, from the question until its trace was read; the answer is the size of the trace in bytes."""

    def __init__(self, command: Profile, folder: Path, rank: int) -> None:
        super().__init__(command.token, command.first, command.steps)
        self.trace = folder / f"{command.number:04}" / _TRACE.format(rank)
        self.profiler: Any = None
        self.mark: Any = None
        """The mark of the step that goes on, in the trace; None before the first of these steps, and after the last."""
        self.phases: dict[int, ProfiledStep] = {}
        """By step, where it is recorded."""
        self.thread = 0
        """Identifier of the thread that has begun it."""

    def end_mark(self) -> None:
        """End the mark of the step that goes on."""
        mark, self.mark = self.mark, None
        if mark is not None:
            mark.__exit__(None, None, None)


class Profiling(OverSteps[_Profile]):
    """The profiles of one rank, one at a time."""

    def __init__(self, rank: int, folder: Path, stamps: Stamps, faults: Faults) -> None:
        """Load nothing; `folder` is where the profiles of the run are kept."""
        super().__init__(stamps)
        self._rank = rank
        self._folder = folder
        self._faults = faults
        self._active: _Profile | None = None
        """The one that has begun, until its trace is written: that which was asked for last."""
        self._is_beginning = False
        self._gives_way = False
        """True once torch says when a profiler begins."""

    def ask(self, command: Profile, completed: int) -> Profiled | None:
        """Profile some steps; return what is known of the trace, None until it is written.

        Raises:
            Passed: the rank had begun the first of these steps before it was asked.
            Unanswered: there is no trace, and why.
        """
        asked = self._asked
        if asked is None or asked.token != command.token:
            if completed >= command.first - 1:
                raise Passed
            if self._active is not None:
                # The one before it was given up, and ends soon.
                return None
            if asked is not None:
                # Nobody has read it, where it is still there.
                asked.trace.unlink(missing_ok=True)
            asked = _Profile(command, self._folder, self._rank)
            marks.make(asked.trace.parent)
            self._take(asked)
        asked.check()
        return None if asked.answer is None else Profiled(asked.answer, tuple(asked.phases.values()))

    def cancel(self, token: str) -> None:
        """Make no profile of this token, end it where it has begun, and remove the trace that nobody reads."""
        super().cancel(token)
        if (asked := self._asked) is not None and asked.token == token and asked.answer is not None:
            asked.trace.unlink(missing_ok=True)

    def read(self, token: str, offset: int) -> ProfilePiece | None:
        """Return a piece of the trace; None where there is no such trace. It is removed once its end was asked for."""
        asked = self._asked
        if asked is None or asked.token != token or asked.answer is None:
            return None
        if offset >= asked.answer:
            asked.trace.unlink(missing_ok=True)
            return ProfilePiece(offset, b"")
        with open(asked.trace, "rb") as file:
            file.seek(offset)
            return ProfilePiece(offset, file.read(MOST_OF_PROFILE))

    def boundary(self, step: int) -> None:
        """Begin, go on or end at the boundary behind a step; called by the training thread, and raises nothing."""
        asked = self._asked
        if asked is None:
            return
        try:
            if asked is self._active:
                asked.end_mark()
                if asked.problem:
                    self._abort(asked)
                elif step < asked.last:
                    asked.mark = _mark(step + 1)
                else:
                    asked.profiler.stop()
                    threading.Thread(target=self._write, args=(asked,), name="ddptop-profile", daemon=True).start()
            elif step >= asked.first:
                asked.has_passed = True
            elif not asked.problem and step == asked.first - 1:
                self._begin(asked)
                asked.mark = _mark(step + 1)
            if asked.mark is not None:
                # Its phases are those of its record.
                self._stamps.record_present()
        except Exception as error:
            asked.problem = describe(error)
            self._faults.note("profiling", error)
            with contextlib.suppress(Exception):
                self._abort(asked)
        self._go_on(step, is_under_way=asked.mark is not None)

    def _begin(self, asked: _Profile) -> None:
        self._is_beginning = True
        try:
            self._watch()
            asked.profiler = _begun()
        finally:
            self._is_beginning = False
        asked.thread = threading.get_ident()
        self._active = asked

    def _watch(self) -> None:
        """Have torch say when a profiler of the script begins, from now on."""
        if self._gives_way:
            return
        begins = sys.modules["torch"].autograd.profiler.profile
        prepare = begins._prepare_trace

        @functools.wraps(prepare)
        def prepared(*args: Any, **kwargs: Any) -> Any:
            self._give_way()
            return prepare(*args, **kwargs)

        replace(begins, "_prepare_trace", prepared)
        self._gives_way = True

    def _give_way(self) -> None:
        """End the profile before a profiler of the script begins, on the script's thread; raises nothing."""
        asked = self._active
        if self._is_beginning or asked is None or asked.mark is None:
            return
        asked.problem = _SCRIPTS_OWN
        # That of another thread is ended by the thread itself, at the end of its step.
        if asked.thread == threading.get_ident():
            self.is_armed = False
            with contextlib.suppress(Exception):
                asked.end_mark()
                self._abort(asked)

    def _abort(self, asked: _Profile) -> None:
        """End the profiler, where it has begun, without a trace."""
        profiler, asked.profiler = asked.profiler, None
        if self._active is asked:
            self._active = None
        if profiler is not None:
            profiler.stop()

    def _write(self, asked: _Profile) -> None:
        unfinished = asked.trace.with_name(f".{asked.trace.name}")
        try:
            # By the ending torch knows that it is to be compressed.
            asked.profiler.export_chrome_trace(str(unfinished))
            size = unfinished.stat().st_size
            if size > LARGEST_PROFILE:
                raise ValueError(f"it has {size >> 20} MiB; profile fewer steps")
            unfinished.replace(asked.trace)
            asked.answer = size
            if asked.problem:
                # Cancelled meanwhile, before there was a trace to remove.
                asked.trace.unlink(missing_ok=True)
        except Exception as error:
            asked.problem = f"its trace cannot be written: {describe(error)}"
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
        finally:
            asked.profiler = self._active = None

    def settle(self, stamped: StepStamps) -> None:
        """Take the phases of a profiled step from its stamps; called by the agent's thread."""
        asked = self._asked
        if asked is not None and asked.first <= stamped.step <= asked.last and not asked.problem:
            spans = [PhaseSpan(*each) for each in itertools.islice(intervals_of(stamped), MOST_SPANS)]
            asked.phases[stamped.step] = ProfiledStep(stamped.step, tuple(spans))

    def abandon(self) -> None:
        """In a forked child: its steps are not these, and torch's profiler goes on in the parent alone."""
        self.is_armed = False
        self._active = None


def _begun() -> Any:
    torch: Any = sys.modules["torch"]
    if torch.autograd._profiler_enabled():
        raise RuntimeError("its script uses the profiler at this moment")
    profiler = torch.profiler
    wanted = {profiler.ProfilerActivity.CPU}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        wanted.add(profiler.ProfilerActivity.CUDA)
    begun = profiler.profile(activities=wanted & set(profiler.supported_activities()), record_shapes=True)
    with _quiet():
        begun.start()
    return begun


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what torch's profiler says of itself out of the output of the rank, unless its user has chosen a level.

    It looks for the level each time it begins.
    """
    is_chosen = _LEVEL in os.environ
    os.environ.setdefault(_LEVEL, "99")
    try:
        yield
    finally:
        if not is_chosen:
            del os.environ[_LEVEL]


def _mark(step: int) -> Any:
    torch: Any = sys.modules["torch"]
    mark = torch.profiler.record_function(f"ddptop step {step}")
    mark.__enter__()
    return mark
