"""A run, alive or ended: the `Source` of the screens, of `status` and of the plain output.

The frames of a live run come from its observer, those of one that has ended from its record. Messages are taken in
without waiting and for a bounded time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from ddptop.agent import wire
from ddptop.agent.client.acting import actor
from ddptop.agent.client.acting.control import RunControl
from ddptop.agent.client.acting.membership import ProcessLine
from ddptop.agent.client.diagnosis.stacks import RunInspector, Stacks
from ddptop.agent.client.frame import Frame, whole
from ddptop.agent.client.runs import Run, RunDirError, find
from ddptop.agent.client.sources import recorded, takeover
from ddptop.agent.client.sources.recorded import Frames
from ddptop.agent.client.sources.subscription import Subscription
from ddptop.agent.control.silence import OBSERVED_S, LastHeard
from ddptop.agent.end import survey
from ddptop.agent.end.survey import Survey
from ddptop.agent.run import states
from ddptop.agent.run.files.database import Locked
from ddptop.agent.run.files.private import is_plain
from ddptop.agent.run.rundir import Member, RunDir
from ddptop.agent.wire import HostFrame, RankFrame
from ddptop.agent.wire.frames import ENDED, NO_HOSTS, HostFrames, RunFrame
from ddptop.agent.wire.vocabulary.refusals import Refused

if TYPE_CHECKING:
    from ddptop.agent.client.history.history import History
    from ddptop.agent.client.logs.copies import CopiedLogs
    from ddptop.agent.client.logs.of_run import RunLogs
    from ddptop.agent.record.history.question import Question
    from ddptop.agent.wire.diagnoses.kept import Kept
    from ddptop.agent.wire.report import Report

DRAIN_S: Final = 0.016
"""How long one `poll` takes in what was sent by itself, so that a flood of messages does not hold up a key."""
LONG_POLL_S: Final = 0.9 * DRAIN_S
"""Where a `poll` took longer, it may have stopped at its limit, and more messages may be there."""
LOOK_S: Final = 0.25
"""Seconds between two looks at the record of the run."""
SEARCH_S: Final = 1.0
"""Seconds between two looks whether the run has an observer, while none is heard."""
START_S = 10.0
"""Seconds that the observer of a run may take to come, before it is missed."""
FIRST_FRAME_S = 0.5
"""Seconds that an observer may take for its first frame, before somebody looks whether there is one."""
_TOLD: Final = ("ended", "health", "fault")
"""Fields of a rank with words that its script may have said."""
ACTIONS: Final = (
    "pause", "step", "resume", "freeze", "checkpoint", "stop", "diagnose", "kill", "signal", "restart",
)  # fmt: skip
"""What can be done with a run."""


def open(run: str, who: str = "", *, looks_back: bool = False) -> Watch:
    """Open the run that a name means, or the beginning of one, or its last four digits.

    Args:
        run: the name.
        who: the actor, for the events of the run; this user, where nobody is named.
        looks_back: have a history, see `Watch.history`.

    Raises:
        RunDirError: there is no such run, or more than one.
    """
    return Watch(find(run), who or actor.who("program"), looks_back=looks_back)


class Watch:
    """One run, alive or ended, as seen and controlled from outside it.

    As a context it closes itself. Of one thread are `poll`, `frame`, `watch`, `open` and `close`.
    """

    run: Run
    """The run that is watched: its events, its report, its logs."""
    control: RunControl
    """Acts on it."""
    inspector: RunInspector
    """Asks its ranks where they stand."""
    history: History | None
    """The numbers of its steps, where somebody looks back."""

    def __init__(
        self,
        run: Run,
        who: str,
        *,
        onlooker: bool = False,
        looks_back: bool = False,
        ranks: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open a run.

        Args:
            run: the run.
            who: the actor, for the events of the run, where something is done with it.
            onlooker: change nothing about the run, not even the record of an end that nobody saw.
            looks_back: hold more of the history than a frame of now needs.
            ranks: False: while it goes on its frames have no ranks, and cost its observer less.
            clock: bounds each `poll`.

        Raises:
            RunDirError: the run is gone, or has no readable record.
        """
        self._clock = clock
        self._looks_back = looks_back
        self._shows_ranks = ranks
        self._who = who
        self._onlooker = onlooker
        self._meet = survey.look if onlooker else takeover.meet
        self._next: Run | None = None
        """A run to be shown from the next `poll` on; the one that is shown, where its number of ranks has changed."""
        self._begin(run)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, run: Run) -> None:
        self.run, self._record = run, run.record()
        self._mask = run.mask()
        self._masked: tuple[object, RunFrame] | None = None
        """The newest frame of the run, and the same without its secrets."""
        directory = run.directory
        self._is_replaced = False
        """True once another run has the name: the last frame of this one stays."""
        shows_logs = self._looks_back and states.has_other_hosts(self._record) and not self._has_ended
        self._copies = _copied_logs(directory) if shows_logs else None
        self.control = RunControl(directory, self._record, self._who)
        self.inspector = RunInspector(directory, self._record)
        self._members: dict[int, Member] = {}
        """Those of this host, of a run on several."""
        self._members_at_ns = 0
        """When their folder was changed last, as far as they are known."""
        self._stamp: tuple[int, int] | None = None
        """File and time of the record when it was seen to be that of this run."""
        self._look_due = self._search_due = 0.0
        self._opened_at = self._clock()
        self._framed = False
        """True once somebody has seen the run."""
        self._hosts: tuple[tuple[HostFrame, ...], HostFrames] = ((), NO_HOSTS)
        self.history = _history(self._record.world) if self._looks_back else None
        """Where somebody looks back."""
        self._recorded: Frames | None = None
        """Those of the record, where no observer is heard."""
        self._found: Survey | None = None
        """The run by its processes, likewise."""
        self._shown: Frames | None = None
        """Those that were shown last."""
        self._is_settled = False
        """True once the last frames of a run that has ended are shown."""
        # One that has looked after the run for a while answers at once.
        starting = self._record.observer is None or self._record.state == "starting"
        self._patience_s = START_S if starting else OBSERVED_S
        self._last_heard = LastHeard(OBSERVED_S)
        self._patience = takeover.Patience(self._clock)
        self._observed: Subscription | None = None
        self._refused = 0
        """Messages that could not be read of an observer that has gone."""
        if not self._has_ended:
            self._observed = Subscription(
                directory, self._record.world, self.history, self._is_same, self._clock, ranks=self._shows_ranks
            )

    def events(self) -> list[wire.Event | wire.Verdict]:
        """Return its events and verdicts, each where it was told; in any thread, as the next four."""
        return self.run.happened()

    def logs(self, ranks: Sequence[int] = ()) -> RunLogs:
        """Return the logs of some ranks, of all of them where none is named."""
        return self.run.logs(ranks)

    def report(self) -> Report:
        """Return the report on it and its end; see `Source.report`."""
        return self.run.report()

    def diagnoses(self, kind: str) -> list[Kept[Any]]:
        """Return the diagnoses of a kind that are kept with it, the newest first."""
        return self.run.diagnoses(kind)

    def stacks(self, ranks: Collection[int] | None = None, *, native: bool = False) -> Stacks:
        """Ask some ranks where they stand, all of them without `ranks`; waits for their answers."""
        return self.inspector.ask(ranks, native=native)

    def processes(self) -> list[ProcessLine]:
        """Return every live process of the run."""
        return self.control.processes()

    def ask(self, action: str, **options: Any) -> str:
        """Have an action done and say in one line what was done: `ask("step", steps=10)`; `control` has them all.

        Raises:
            Refused: it was not done, and why.
        """
        if action not in ACTIONS:
            raise Refused(f"{action} is no action; there are {', '.join(ACTIONS)}")
        return str(getattr(self.control, action)(**options))

    def open(self, run: str) -> None:
        """Show another run from now on; see `Source.open`."""
        try:
            found = find(run)
            run_id = found.record().run_id
        except RunDirError as problem:
            raise Refused(str(problem)) from problem
        if run_id == self._record.run_id and self._next is None:
            return
        self._next = None
        self.close()
        self._begin(found)

    @property
    def _has_ended(self) -> bool:
        return self._record.state in ENDED

    @property
    def _is_heard(self) -> bool:
        """True while an observer sends frames of the run, and has sent all of it."""
        if self._observed is None or not self._observed.is_whole:
            return False
        return self._last_heard.missed_s(time.time()) is None

    @property
    def complete(self) -> bool:
        """True once a frame has all that there is: from the observer of the run, or where none will say more."""
        if self._has_ended:
            return self._is_settled
        if self._is_heard:
            return True
        is_silent = (
            self._observed is None or self._observed.problem or self._last_heard.missed_s(time.time()) is not None
        )
        return bool(is_silent) and self._found is not None and self._found.supervised

    def poll(self) -> None:
        """Take in what has arrived, for a bounded time; waits for no message."""
        if (following := self.control.restarted or self._next) is not None:
            self._go_over(following)
        if not self._is_same():
            return
        now = self._clock()
        if now >= self._look_due:
            self._look()
            self._look_due = now + LOOK_S
        if self._is_replaced or self._next is not None:
            return
        deadline = self._clock() + DRAIN_S
        if self._observed is not None:
            self._hear(self._observed, deadline)
        if not self._has_ended and not self._is_heard:
            self._see_to_observer(now)
        if self._has_ended:
            self._look_at_end()

    def _hear(self, observed: Subscription, deadline: float) -> None:
        """Take in what the observer says."""
        observed.follow_watched()
        received = observed.received
        if observed.drain(deadline):
            self._last_heard.hear(time.time())
        if not (self._onlooker or observed.problem):
            # One whose frames cannot be read here lives.
            self._patience.listen(self._record.observer, heard=observed.received > received)
        if self._is_heard:
            # Its frames are all that is known.
            self._found = self._recorded = None
        if observed.run is not None and observed.run.state in ENDED:
            # The record says so, too.
            self._look_due = 0.0
        observed.mend()
        observed.take_answers()
        observed.ask_for_history()

    def _see_to_observer(self, now: float) -> None:
        """Find out whether the run has an observer, start one where it has none, and show the record meanwhile."""
        is_awaited = now - self._opened_at < FIRST_FRAME_S and self._observed is not None and not self._observed.problem
        if is_awaited or now < self._search_due:
            return
        self._search_due = now + SEARCH_S
        with contextlib.suppress(RunDirError):
            # Removed under our eyes, the last frame stays.
            self._found = found = self._meet(self.run.directory)
            if found.ended and not found.supervised:
                self._record = msgspec.structs.replace(
                    found.run,
                    state=found.state,
                    exit_code=found.exit_code,
                    cause=found.cause,
                    cause_rank=found.cause_rank,
                )
        if self._recorded is None and self._last_heard.at is None and not self._onlooker:
            with contextlib.suppress(Locked):
                self._recorded = recorded.read(self.run.directory, self._record)
            if self._recorded is not None and not self._has_ended:
                # Until somebody is heard, its ranks are as they were then.
                self._last_heard.expect(self._recorded[0].at)

    @property
    def _heard(self) -> Frames | None:
        """The newest frames of an observer."""
        observed = self._observed
        if observed is None or observed.run is None or not observed.is_whole:
            return None
        return observed.run, [observed.ranks[rank] for rank in range(self._record.world) if rank in observed.ranks]

    def _by_record(self) -> Frames:
        run = self._record if self._found is None else msgspec.structs.replace(self._record, state=self._found.state)
        return recorded.by_record(run, self.run.directory.everyone())

    def _look_at_end(self) -> None:
        """Show the last frames of the run, which has ended, and answer what views look back at."""
        if not self._is_settled:
            with contextlib.suppress(RunDirError, Locked):
                self._end()
        if self.history is not None and self._framed:
            # After the first paint: it needs NumPy.
            self.history.asked.ask_source()

    def _end(self) -> None:
        """Take the last frames of the run, and have its file answer questions from now on."""
        self._shown = recorded.last(self.run.directory, self._record, self._heard, onlooker=self._onlooker)
        self._is_settled = True
        if self._observed is not None:
            self._refused += self._observed.refused
            self._observed.close()
            self._observed = None
        if self.history is not None:
            is_readable = not self._onlooker and is_plain(self.run.directory.database)
            self.history.asked.end(self._ask_file if is_readable else None)

    def _ask_file(self, query: Question) -> list[wire.HistoryAnswer]:
        from ddptop.agent.record.history import answers

        return answers.from_file(self.run.directory.database, self._record.world, query, self._hosts[1])

    def _go_over(self, following: Run) -> None:
        self._next = self.control.restarted = None
        try:
            following.record()
        except RunDirError:
            # Removed under our eyes: the last frame stays.
            return
        self.close()
        self._begin(following)

    def poll_history(self) -> None:
        """Ask for the numbers that views look at, and take in those that have come; all else stays as it is."""
        if self._observed is not None:
            self._observed.ask_for_history()
            self._observed.take_answers()
        elif self.history is not None:
            self.history.asked.ask_source()

    def watch(self, ranks: frozenset[int], logs: frozenset[int] = frozenset()) -> None:
        """Say which ranks' records are looked at, and whose logs; the frames of a small group come anyway."""
        if self._observed is not None:
            self._observed.watch(ranks)
        if self._copies is not None and not self._has_ended:
            self._copies.want([rank for rank in logs if rank not in self._members])

    def _look(self) -> None:
        """Read again what has changed of the record, and whether the observer is missed."""
        try:
            run = self.run.record()
        except RunDirError:
            # Removed under our eyes: the last frame stays.
            return
        if run.run_id != self._record.run_id:
            self._let_go()
            return
        if run.world != self._record.world:
            # An elastic launcher goes on with another number of ranks, for which nothing here was made.
            self._next = self.run
            return
        if run != self._record and (run.state in ENDED or not self._has_ended):
            # On a full disk its end is known by its processes alone.
            self._record, self._is_settled = run, False
        if states.has_other_hosts(run):
            self._know_members()
        waited_s = self._clock() - self._opened_at
        if self._last_heard.at is None and waited_s >= self._patience_s:
            self._last_heard.expect(time.time() - waited_s)

    def _know_members(self) -> None:
        with contextlib.suppress(OSError):
            changed_at = (self.run.directory.path / "ranks").stat().st_mtime_ns
            if changed_at != self._members_at_ns:
                self._members_at_ns, self._members = changed_at, self.run.directory.members()

    def _is_same(self) -> bool:
        """Say whether the directory is still that of this run; another run may take its name at any time."""
        try:
            found = os.stat(self.run.directory.path / "run.json")
            stamp = found.st_ino, found.st_mtime_ns
            if stamp != self._stamp and not self._is_replaced:
                if self.run.directory.read().run_id != self._record.run_id:
                    self._let_go()
                self._stamp = stamp
        except (OSError, RunDirError):
            # Removed under our eyes: nobody else is there.
            pass
        return not self._is_replaced

    def _let_go(self) -> None:
        """Take in nothing more: the name of this run was taken by a newer one, and with it its sockets and files."""
        if self._is_replaced:
            return
        self._is_replaced = True
        if self._observed is not None:
            self._observed.close()
        if not self._has_ended:
            # What has become of it stood in its record.
            told = f"another run has its name: `ddptop attach {self._record.run}` shows that one"
            self._record = msgspec.structs.replace(self._record, state="lost", cause=told)

    def frame(self) -> Frame:
        """Return the run as it is known by the last `poll`."""
        self._framed = True
        run, ranks = self._shown = self._frames()
        if self._is_replaced:
            run = replace(run, state=self._record.state, cause=self._record.cause)
        if self._masked is None or self._masked[0] is not run:
            self._masked = run, self._mask.shown(run)
        run = self._masked[1]
        if run.on_hosts != self._hosts[0]:
            self._hosts = run.on_hosts, HostFrames(run.on_hosts)
        silent_s = None if run.state in ENDED else self._last_heard.missed_s(time.time())
        if states.has_other_hosts(self._record):
            ranks = [self._from_here(rank) for rank in ranks]
        # Of thousands of ranks each frame has to be cheap.
        ranks = [self._mask.shown(rank, *_TOLD) if rank.ended or rank.health or rank.fault else rank for rank in ranks]
        frame = whole(run, tuple(ranks), self._hosts[1], self.history, silent_s)
        refused = self._refused + (0 if self._observed is None else self._observed.refused)
        return replace(frame, refused=frame.refused + refused) if refused else frame

    def _frames(self) -> Frames:
        """Return the newest frames that are known."""
        if self._is_replaced:
            # Nothing is read of the run that has its name.
            return self._heard or self._shown or recorded.by_record(self._record, {})
        if self._shown is not None and self._is_settled:
            return self._shown
        frames = self._heard or self._recorded or self._by_record()
        if frames[0].state in ENDED and not self._has_ended and self._shown is not None:
            # Its record says so in a moment; only then everything is there.
            return self._shown
        if self._has_ended:
            return recorded.concluded(frames, self._record, self.run.directory)
        if (found := self._found) is None:
            return frames
        return replace(frames[0], supervised=found.supervised, orphaned=found.orphaned), frames[1]

    def _from_here(self, rank: RankFrame) -> RankFrame:
        """Return a rank of a run on several hosts as it is seen from this one: its log may be here, or be copied here.

        The observer that has made the frame may be that of another host.
        """
        here = self._members.get(rank.rank)
        if here is not None:
            return replace(rank, far=False, log=here.log)
        copies = self._copies
        has_copy = copies is not None and not rank.unkept and (not self._has_ended or copies.has(rank.rank))
        return replace(rank, far=True, log=copies.path(rank.rank) if copies is not None and has_copy else None)

    def close(self) -> None:
        """Close all sockets; the run does not notice."""
        if self._observed is not None:
            self._observed.close()
        if self._copies is not None:
            self._copies.close()


def _copied_logs(directory: RunDir) -> CopiedLogs:
    # Its temporary folder is of no use to `status` and the plain lines.
    from ddptop.agent.client.logs.copies import CopiedLogs

    return CopiedLogs(directory)


def _history(world: int) -> History:
    # Its tables are of no use to `status` and the plain lines.
    from ddptop.agent.client.history.history import History

    return History(world)
