"""A run, alive or ended: the `Source` of the screens, of `status` and of the plain output.

The frames of a live run come from its observer, those of one that has ended, or whose observer is gone, from its
directory. Messages are taken in without waiting and for a bounded time, but for the one at hand.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from ddptop.agent.client import diagnoses, takeover
from ddptop.agent.client.acting.control import RunControl
from ddptop.agent.client.frame import Frame, whole
from ddptop.agent.client.stacks import RunInspector
from ddptop.agent.client.subscription import Subscription
from ddptop.agent.control.hearing import OBSERVED_S, Hearing
from ddptop.agent.end import survey
from ddptop.agent.observer.model.run_model import LOOK_S, RunModel
from ddptop.agent.run import rundir, states
from ddptop.agent.run.files.private import is_plain
from ddptop.agent.run.rundir import Member, RunDir, RunDirError
from ddptop.agent.run.switches.thresholds import Thresholds
from ddptop.agent.wire import HostFrame, RankFrame, RunFrame
from ddptop.agent.wire.frames import ENDED
from ddptop.agent.wire.host_frames import NO_HOSTS, HostFrames
from ddptop.agent.wire.refusals import Refused

if TYPE_CHECKING:
    from ddptop.agent.client.history.history import History
    from ddptop.agent.client.logs.copies import CopiedLogs
    from ddptop.agent.wire.diagnoses.kept import Kept
    from ddptop.agent.wire.report import Report

DEFAULT = Thresholds()
DRAIN_S: Final = 0.016
"""How long one `poll` takes in what was sent by itself, so that a flood of messages does not hold up a key."""
LONG_POLL_S: Final = 0.9 * DRAIN_S
"""Where a `poll` took longer, it may have stopped at its limit, and more messages may be there."""
CATCH_UP_S = 0.03
"""Seconds of a `poll` in which the recording is read: the frame is not complete before."""
START_S = 10.0
"""Seconds that the observer of a run may take to come, before it is missed."""
GREETING_S = 0.5
"""Seconds that an observer may take for its first frame, before the directory is read."""


class Link:
    """One run, as seen and controlled from outside it."""

    def __init__(
        self,
        directory: RunDir,
        who: str,
        thresholds: Thresholds = DEFAULT,
        *,
        onlooker: bool = False,
        looks_back: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open a run.

        An `onlooker` changes nothing about it, not even the record of an end that nobody saw; one that
        `looks_back` holds more of the history than a frame of now needs. The `clock` bounds each `poll`.
        """
        self._clock = clock
        self._thresholds = thresholds
        self._looks_back = looks_back
        self._who = who
        self._onlooker = onlooker
        self._meet = survey.look if onlooker else takeover.meet
        self._next: RunDir | None = None
        """A run to be shown from the next `poll` on; the one that is shown, where its number of ranks has changed."""
        self._open(directory)

    def _open(self, directory: RunDir) -> None:
        self.directory = directory
        self._run = directory.read()
        self._is_replaced = False
        """True once another run has the name: the last frame of this one stays."""
        shows_logs = self._looks_back and states.has_other_hosts(self._run) and not self._has_ended
        self._copies = _copied_logs(directory) if shows_logs else None
        self.control = RunControl(directory, self._run, self._who)
        self.inspector = RunInspector(directory, self._run)
        self._members: dict[int, Member] = {}
        """Those of this host, of a run on several."""
        self._members_at_ns = 0
        """When their folder was changed last, as far as they are known."""
        self._stamp: tuple[int, int] | None = None
        """File and time of the record when it was seen to be that of this run."""
        self._look_due = 0.0
        self._opened_at = self._clock()
        self._framed = False
        """True once somebody has seen the run."""
        self._told: tuple[tuple[HostFrame, ...], HostFrames] = ((), NO_HOSTS)
        self._now = time.time()
        self.history = _history(self._run.world) if self._looks_back else None
        """Where somebody looks back."""
        self._observed: Subscription | None = None
        self.model: RunModel | None = None
        """The state by its directory, where no observer says it."""
        # One that has looked after the run for a while answers at once.
        starting = self._run.observer is None or self._run.state == "starting"
        self._patience_s = START_S if starting else OBSERVED_S
        self._hearing = Hearing(self._thresholds.silent_s)
        if self._has_ended:
            self._ask_directory()
        else:
            self._observed = Subscription(directory, self._run.world, self.history, self._is_same, self._clock)
            self.model = self._new_model(None)

    def _new_model(self, database: Path | None) -> RunModel:
        return RunModel(self.directory, self._run, self._thresholds, database, self._clock)

    def _ask_directory(self) -> None:
        """Have the directory say all that is known of the run."""
        database = self._database()
        self.model = self._new_model(database)
        if self._has_ended and self.history is not None:
            if database is not None:
                from ddptop.agent.record.history import answers

                self.history.asked.end(partial(answers.from_file, database, self._run.world))
            else:
                self.history.asked.end()

    def report(self) -> Report:
        """Return the report on the run; see `Source.report`."""
        # Here, because few runs fail while somebody looks.
        from ddptop.agent.end import report

        return report.of(self.directory)

    def diagnoses(self, kind: str) -> list[Kept[Any]]:
        """Return the diagnoses of a kind that are kept with the run, the newest first; in any thread."""
        return diagnoses.kept(self.directory, kind)

    def open(self, run: str) -> None:
        """Show another run from now on; see `Source.open`."""
        try:
            directory = rundir.find(run)
            run_id = directory.read().run_id
        except RunDirError as problem:
            raise Refused(str(problem)) from problem
        if run_id == self._run.run_id and self._next is None:
            return
        self._next = None
        self.close()
        self._open(directory)

    @property
    def _has_ended(self) -> bool:
        return self._run.state in ENDED

    @property
    def _is_heard(self) -> bool:
        """True while an observer sends frames of the run, and has sent all of it."""
        if self._observed is None or self._has_ended or not self._observed.is_whole:
            return False
        return self._hearing.missed_s(time.time()) is None

    @property
    def settled(self) -> bool:
        """True once the recording has been read of which the present frame is made."""
        return self.model is None or self.model.is_recalled

    @property
    def complete(self) -> bool:
        """True once a frame has all that there is: from the observer of the run, else from its directory."""
        if self._is_heard:
            return True
        return self.model is not None and self.model.is_surveyed and self.settled and self._is_unheard

    @property
    def _is_unheard(self) -> bool:
        """True where the directory has to say what there is: nobody else does, or will in a moment."""
        if self._has_ended or self._observed is None or self._observed.problem:
            return True
        if self.model is not None and self.model.store.liveness is not None:
            live = self.model.store.liveness
            if not live.supervised and self._run.observer is not None:
                return True
        return self._hearing.missed_s(time.time()) is not None

    def poll(self) -> None:
        """Take in what has arrived, for a bounded time; waits for no message."""
        if self._framed and self.history is not None and not self.history.begun:
            # It is imported only now, after the first paint; what was answered meanwhile waits.
            _ = self.history.asked
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
        if self.model is not None:
            self._read(self.model, now)
        if self._has_ended and self.history is not None and self.history.begun:
            self.history.asked.ask_source()

    def _hear(self, observed: Subscription, deadline: float) -> None:
        """Take in what the observer says."""
        observed.follow_watched()
        if observed.drain(deadline):
            self._hearing.hear(time.time())
        if self._is_heard:
            # Its frame is all that is known.
            self.model = None
        observed.mend()
        observed.take_answers()
        if not self._has_ended:
            observed.ask_for_history()

    def _read(self, model: RunModel, now: float) -> None:
        """Take in what the directory says."""
        awaited = not self._is_unheard and now - self._opened_at < GREETING_S
        try:
            model.look()
            if not awaited:
                model.survey(self._meet)
        except RunDirError:
            # Removed under our eyes: the last frame stays.
            return
        if not self._is_unheard:
            return
        if not model.is_recorded and (database := self._database()) is not None:
            model.read(database)
        for message in model.recall(self._clock() + CATCH_UP_S):
            if self.history is not None:
                self.history.hear(message)
        if model.is_recalled and not self._has_ended and model.known_at is not None:
            # Until somebody is heard, its ranks are as they were when they were recorded.
            for hearing in (self._hearing, model.store.hearing):
                hearing.expect(self._hearing.at or model.known_at)

    def _go_over(self, following: RunDir) -> None:
        self._next = self.control.restarted = None
        try:
            following.read()
        except RunDirError:
            # Removed under our eyes: the last frame stays.
            return
        self.close()
        self._open(following)

    def poll_history(self) -> None:
        """Ask for the numbers that views look at, and take in those that have come; all else stays as it is."""
        if self._observed is not None:
            self._observed.ask_for_history()
            self._observed.take_answers()

    def _database(self) -> Path | None:
        """Return the file of the record, None where it is not to be read: that may write beside it."""
        file = self.directory.database
        return file if not self._onlooker and is_plain(file) else None

    def watch(self, ranks: frozenset[int], logs: frozenset[int] = frozenset()) -> None:
        """Say which ranks' records are looked at, and whose logs; the frames of a small group come anyway."""
        if self._observed is not None:
            self._observed.watch(ranks)
        if self._copies is not None and not self._has_ended:
            self._copies.want([rank for rank in logs if rank not in self._members])

    def _look(self) -> None:
        """Read again what has changed of the record, and whether the observer is missed."""
        try:
            run = self.directory.read()
        except RunDirError:
            # Removed under our eyes: the last frame stays.
            return
        if run.run_id != self._run.run_id:
            self._let_go()
            return
        if run.world != self._run.world:
            # An elastic launcher goes on with another number of ranks, for which nothing here was made.
            self._next = self.directory
            return
        has_just_ended = run.state in ENDED and not self._has_ended
        self._run = run
        if states.has_other_hosts(run):
            self._know_members()
        if has_just_ended:
            # Its observer has said its last: what follows is in the record.
            self._ask_directory()
            return
        waited_s = self._clock() - self._opened_at
        if self._hearing.at is None and waited_s >= self._patience_s:
            self._hearing.expect(time.time() - waited_s)
        if self.model is None and self._hearing.missed_s(time.time()) is not None:
            self.model = self._new_model(self._database())

    def _know_members(self) -> None:
        with contextlib.suppress(OSError):
            changed_at = (self.directory.path / "ranks").stat().st_mtime_ns
            if changed_at != self._members_at_ns:
                self._members_at_ns, self._members = changed_at, self.directory.members()

    def _is_same(self) -> bool:
        """Say whether the directory is still that of this run; another run may take its name at any time."""
        try:
            found = os.stat(self.directory.path / "run.json")
            stamp = found.st_ino, found.st_mtime_ns
            if stamp != self._stamp and not self._is_replaced:
                if self.directory.read().run_id != self._run.run_id:
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
            told = f"another run has its name: `ddptop attach {self._run.run}` shows that one"
            self._run = msgspec.structs.replace(self._run, state="lost", cause=told)

    def advance(self, now: float) -> None:
        """Move on to this moment."""
        self._now = now
        if self.model is not None:
            self.model.store.advance(now)

    def frame(self) -> Frame:
        """Return the frame of the moment it has come to."""
        self._framed = True
        run, ranks = self._frames()
        if run.on_hosts != self._told[0]:
            self._told = run.on_hosts, HostFrames(run.on_hosts)
        if self._is_replaced:
            run = replace(run, state=self._run.state, cause=self._run.cause)
        if self.control.countdown:
            run = replace(run, ending=self.control.countdown)
        silent_s = None if run.state in ENDED else self._hearing.missed_s(self._now)
        if states.has_other_hosts(self._run):
            ranks = [self._from_here(rank) for rank in ranks]
        frame = whole(run, tuple(ranks), self._told[1], self.history, silent_s)
        refused = 0 if self._observed is None else self._observed.refused
        return replace(frame, refused=frame.refused + refused) if refused else frame

    def _frames(self) -> tuple[RunFrame, list[RankFrame]]:
        """Return the frame of the run and those of its ranks by who knows them best."""
        model, told = self.model, self._observed
        knows = model is not None and model.is_recalled and model.is_recorded
        if told is not None and told.run is not None and told.is_whole and not knows:
            return _by(told.run, model), [told.ranks[rank] for rank in range(self._run.world)]
        assert model is not None
        return model.framer.frame(), list(model.framer.ranks())

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


def _by(run: RunFrame, model: RunModel | None) -> RunFrame:
    """Return the last frame of an observer, with the present state by the run's record and its processes."""
    if model is None:
        return run
    now, live = model.framer.frame(), model.store.liveness
    if now.state in ENDED:
        return replace(
            run, state=now.state, cause=now.cause, cause_rank=now.cause_rank, exit_code=now.exit_code,
            ended_at=now.ended_at, at=now.at,
        )  # fmt: skip
    return run if live is None else replace(run, supervised=live.supervised, orphaned=live.orphaned)


def _copied_logs(directory: RunDir) -> CopiedLogs:
    # Its temporary folder is of no use to `status` and the plain lines.
    from ddptop.agent.client.logs.copies import CopiedLogs

    return CopiedLogs(directory)


def _history(world: int) -> History:
    # Its tables are of no use to `status` and the plain lines.
    from ddptop.agent.client.history.history import History

    return History(world)
