"""How the dashboard sees a run and acts on it.

The app reaches the run that it shows through a `Source`, so that a live run, a recording and a
fake in a test look the same to it; the other runs of the machine it knows through a `Fleet`.
What acts on a run is its `Control`, so that who may only look has one that refuses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from ddptop.agent.client import runs
from ddptop.agent.client.acting.kill import Aim, Consent
from ddptop.agent.client.acting.membership import ProcessLine
from ddptop.agent.client.acting.waiting import Waiting
from ddptop.agent.client.diagnosis.stacks import Stacks
from ddptop.agent.client.frame import Frame
from ddptop.agent.wire.vocabulary.refusals import Busy, Cancelled, Hung, Refused, Unholdable, Unsavable

if TYPE_CHECKING:
    from ddptop.agent.wire.diagnoses.kept import Kept
    from ddptop.agent.wire.report import Report

__all__ = [
    "Busy", "Cancelled", "Control", "Home", "Hung", "Inspector", "ReadOnly", "Refused", "Source", "Unholdable",
    "Unsavable",
]  # fmt: skip


class Control(Protocol):
    """Acts on one run, or says what would be acted on."""

    def pause(self, waiting: Waiting | None = None) -> str:
        """Hold all ranks at one step. Blocks; returns one line saying what was done.

        `waiting` takes the line on the ranks that it waits for, and ends it once cancelled; so of `step`, `checkpoint`
        and `stop`.

        Raises:
            Refused: they are not held, and why.
            Hung: the run hangs; so of `step`, `checkpoint` and `stop`.
            Unholdable: there is no step at which they could be; `freeze` is what is left.
            Cancelled: `waiting` was cancelled; they go on.
        """
        ...

    def join(self, waiting: Waiting | None = None) -> str:
        """Have the agent join all ranks of a job that nobody prepared. Blocks; returns one line.

        Raises:
            Refused: none has joined, and why.
            Cancelled: `waiting` was cancelled; none has joined.
        """
        ...

    def leave(self, waiting: Waiting | None = None) -> str:
        """Have the agent leave all ranks that it has joined. Blocks; returns one line.

        Raises:
            Refused: it has not left all, and why.
        """
        ...

    def freeze(self) -> str:
        """Stop all processes where they are, at the risk of their collective timeout. Blocks as `pause` does.

        Raises:
            Refused: they are not stopped, and why.
        """
        ...

    def step(self, steps: int, waiting: Waiting | None = None) -> str:
        """From a pause, let all ranks do exactly so many more steps. Blocks; returns one line.

        Raises:
            Refused: they were not made, and why.
            Cancelled: `waiting` was cancelled; the ranks are held once they have made the steps.
        """
        ...

    def checkpoint(self, waiting: Waiting | None = None) -> str:
        """Have all ranks save a checkpoint at the same step. Blocks; returns one line saying where.

        Raises:
            Refused: there is none, and why.
            Unsavable: the script has registered no function for it.
        """
        ...

    def diagnose(
        self,
        kind: str,
        waiting: Waiting | None = None,
        *,
        steps: int = 1,
        ranks: tuple[int, ...] | None = None,
        culprit: bool = False,
    ) -> str:
        """Diagnose some ranks. Blocks; returns the folder of the diagnosis, on the host of the run's observer.

        Args:
            kind: of `client.diagnosis.kinds.DIAGNOSES`.
            waiting: as of `pause`.
            steps: number of steps over which it is made.
            ranks: the ranks, None for all.
            culprit: diagnose the rank that a verdict accuses and an ordinary one, and `ranks` where none is accused.

        Raises:
            Refused: there is no diagnosis, and why.
            Cancelled: `waiting` was cancelled.
        """
        ...

    def stop(self, waiting: Waiting | None = None, *, checkpoint: bool) -> str:
        """End all scripts at the same step, after a checkpoint where there can be one. Blocks; returns one line.

        Raises:
            Refused: they do not end, and why.
        """
        ...

    def resume(self) -> str:
        """Resume all ranks. Blocks; returns one line saying what was done.

        Raises:
            Refused: they do not go on, and why.
        """
        ...

    def kill(self, grace_s: float, aim: Aim, progress: Callable[[str], None], consent: Consent | None = None) -> str:
        """End the run, or one rank or process of it. Blocks; returns one line saying what was ended.

        `progress` takes lines for the user and may be called from any thread; `consent` is asked right before.

        Raises:
            Refused: nothing was ended, or something is left, and why.
        """
        ...

    def signal(self, number: int, aim: Aim, consent: Consent | None = None) -> str:
        """Send a signal. Blocks for a moment; returns one line saying who got it; `consent` as in `kill`.

        Raises:
            Refused: nobody got it, and why.
        """
        ...

    def resumable(self) -> bool:
        """Say whether the run, once ended, can be restarted from a checkpoint."""
        ...

    def restart(self, *, resume: bool) -> str:
        """Start the ended run again, and show the new run from then on. Blocks; returns one line.

        Raises:
            Refused: nothing was started, and why.
        """
        ...

    def victims(self, aim: Aim) -> str:
        """Describe in one or two lines what `kill` would end. May take a moment.

        Raises:
            Refused: it is not known.
        """
        ...

    def processes(self) -> list[ProcessLine]:
        """Return every live process of the run, torchrun first, then each rank with its helpers. Takes a moment.

        Raises:
            Refused: they are not known.
        """
        ...


class Inspector(Protocol):
    """Asks the ranks of one run where they stand; it changes nothing."""

    def recorded(self, since: float) -> Stacks | None:
        """Return where the ranks stood when the run was last found to hang; None where nothing was recorded since then.

        Args:
            since: seconds since the epoch; 0: at any time.
        """
        ...

    def ask(
        self,
        ranks: Collection[int] | None = None,
        *,
        native: bool = False,
        heard: Callable[[int, int], None] = lambda heard, asked: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Stacks:
        """Ask some ranks, all of them without `ranks`; each that does not answer is named with the reason. Blocks.

        Args:
            ranks: numbers of ranks of the run.
            native: ask for the frames of C and C++ too, which takes longer.
            heard: takes how many ranks have answered, of how many; from the calling thread.
            cancelled: asked now and then; once it is true, what is known by then is returned.

        Raises:
            Refused: none of them can be asked, and why.
        """
        ...


class Source(Protocol):
    """A run as the dashboard sees it."""

    @property
    def inspector(self) -> Inspector:
        """Asks the ranks of the run that is shown where they stand."""
        ...

    @property
    def control(self) -> Control:
        """Acts on the run that is shown."""
        ...

    def poll(self) -> None:
        """Take in what has arrived; bounded, waits for nobody (some ms). Called 20 times a second."""

    def frame(self) -> Frame:
        """Return the run as it is known by the last `poll`: a value, which never changes."""
        ...

    def open(self, run: str) -> None:
        """Show this run of the user's from now on. Takes a moment, unless it is shown; called where `poll` is.

        Raises:
            Refused: it cannot be shown, and why; the run shown stays.
        """

    def report(self) -> Report:
        """Return the report on the run and its end. Takes a moment; may be called in any thread.

        Raises:
            RunDirError: the run is gone, or has no readable record.
        """
        ...

    def diagnoses(self, kind: str) -> list[Kept[Any]]:
        """Return the diagnoses of a kind that are kept with the run, the newest first; in any thread."""
        ...

    def watch(self, ranks: frozenset[int], logs: frozenset[int] = frozenset()) -> None:
        """Say which ranks' steps are looked at: of a large group the others send means of theirs alone.

        Of ranks on other hosts whose logs are looked at, these are copied here.
        """

    def close(self) -> None:
        """Let go of sockets and files; the run goes on."""


class ReadOnly:
    """A `Source` to be looked at only. What is added to `Source` is missing here until it is known to be reading."""

    def __init__(self, source: Source) -> None:
        self.poll = source.poll
        self.frame = source.frame
        self.watch = source.watch
        self.report = source.report
        self.diagnoses = source.diagnoses
        self.close = source.close
        self.control: Control = _Refusal()
        self._source = source

    @property
    def inspector(self) -> Inspector:
        """The run's own: a question where a rank stands changes nothing."""
        return self._source.inspector

    def open(self, run: str) -> None:
        """Refuse: to look at one run is not to look at all of its user's."""
        _refuse()


def _refuse(*_: object, **__: object) -> NoReturn:
    raise Refused("this dashboard is read-only; `ddptop serve --control` makes one that is not")


class _Refusal:
    """A `Control` that does nothing, and says nothing of the run's processes."""

    pause = freeze = step = checkpoint = diagnose = stop = resume = join = leave = kill = signal = _refuse
    resumable = restart = victims = processes = _refuse


class Home:
    """A `Source` before a run is chosen; it becomes the run's own with the first that is opened."""

    def __init__(self, connect: Callable[[runs.Run], Source]) -> None:
        self._connect = connect
        self._source: Source | None = None

    @property
    def control(self) -> Control:
        """Acts on the run; asked for by a screen that shows one."""
        assert self._source is not None
        return self._source.control

    @property
    def inspector(self) -> Inspector:
        """Asks the run's ranks; asked for by a screen that shows one."""
        assert self._source is not None
        return self._source.inspector

    def open(self, run: str) -> None:
        """Show a run; see `Source.open`."""
        if self._source is not None:
            self._source.open(run)
            return
        try:
            found = runs.find(run)
            found.record()
        except runs.RunDirError as problem:
            raise Refused(str(problem)) from problem
        self._source = self._connect(found)

    def poll(self) -> None:
        """Take in what has arrived."""
        if self._source is not None:
            self._source.poll()

    def frame(self) -> Frame:
        """Return the frame of the run, or of none: the one without a name."""
        if self._source is not None:
            return self._source.frame()
        return Frame(run="", state="starting", program="", world=0, at=time.time())

    def report(self) -> Report:
        """Return the report on the run that is shown."""
        if self._source is None:
            raise runs.RunDirError("no run is shown")
        return self._source.report()

    def diagnoses(self, kind: str) -> list[Kept[Any]]:
        """Return the diagnoses of the run that is shown."""
        return [] if self._source is None else self._source.diagnoses(kind)

    def watch(self, ranks: frozenset[int], logs: frozenset[int] = frozenset()) -> None:
        """Say which ranks' steps are looked at, and whose logs."""
        if self._source is not None:
            self._source.watch(ranks, logs)

    def close(self) -> None:
        """Let go of it; the run goes on."""
        if self._source is not None:
            self._source.close()
