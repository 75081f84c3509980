"""A run, alive or ended: the `Source` of the screens, of `status` and of the plain output.

What arrives is taken in without waiting for anybody and for a bounded time, but for the message at hand.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ddptop.agent.observer.end import freezer
from ddptop.agent.observer.model.framer import Framer
from ddptop.agent.observer.model.hearing import OBSERVED_S
from ddptop.agent.observer.model.hosts import is_on_several
from ddptop.agent.observer.model.situation import Liveness
from ddptop.agent.observer.model.store import Store
from ddptop.agent.observer.status import survey, takeover
from ddptop.agent.run import rundir
from ddptop.agent.run.files.private import is_plain
from ddptop.agent.run.hosts import far_members, read_meeting
from ddptop.agent.run.rundir import ENDED_STATES, Member, RunDir, RunDirError
from ddptop.agent.wire import EACH_RECORD
from ddptop.tui.link.control import RunControl
from ddptop.tui.link.inspection import RunInspector
from ddptop.tui.link.replay import Replay
from ddptop.tui.link.sockets import START_S, Sockets
from ddptop.tui.link.source import DRAIN_S, Refused
from ddptop.tui.link.turns import Turns
from ddptop.tui.model.frame import Frame, RankFrame, whole
from ddptop.tui.settings import Thresholds

if TYPE_CHECKING:
    from ddptop.agent.observer.status.report import Report
    from ddptop.tui.link.logs.afar import LogsAfar
    from ddptop.tui.model.history.history import History

DEFAULT = Thresholds()
CATCH_UP_S = 0.03
"""The same while the history is taken in: the frame is not complete before."""
EARLIER_S = 0.012
"""The same for what only plots look back at."""
LOOK_S = 0.25
SURVEY_S = 1.0
HEARD_S = 2.0
"""A rank heard so lately lives."""
GREETING_S = 0.5
"""How long the observer of a large group may take to tell of its ranks before their processes are looked at."""


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
        acting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Open a run.

        An `onlooker` changes nothing about it, not even the record of an end that nobody saw; one that
        `looks_back` holds more of the history than a frame of now needs. The `clock` bounds each `poll`.
        For `acting` see `RunControl`.
        """
        self._acting = acting
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
        logs = {rank: str(directory.rank_log(rank)) for rank in range(self._run.world)} if self._run.launched else {}
        self._brief = self._run.world > EACH_RECORD and self._run.state not in ENDED_STATES
        self.store = Store(self._run, self._thresholds, brief=self._brief)
        shows_logs = self._looks_back and is_on_several(self._run) and not self._has_ended
        self._logs_afar = _logs_afar(directory) if shows_logs else None
        self._framer = Framer(self.store, logs)
        self.history = _history(self._run.world) if self._looks_back else None
        """Where somebody looks back."""
        self.control = RunControl(
            directory,
            self._run,
            self._who,
            count_down=self.store.count_down,
            restarted=partial(self._show_next, directory),
            acting=self._acting,
        )
        self.inspector = RunInspector(directory, self._run)
        self._sockets = Sockets(
            directory, self._run.world, self.store, self._clock, self._is_same, self.history, brief=self._brief
        )
        self._members: dict[int, Member] = {}
        """Those of this host: no other process is looked up here."""
        self._surveyed: dict[int, Member] | None = None
        """The members whose processes were looked up last."""
        self._turns = Turns()
        self._generation = 0
        self._stamps: tuple[float, ...] = ()
        self._stamp: tuple[int, int] | None = None
        """File and time of the record when it was seen to be that of this run."""
        self._look_due = self._survey_due = 0.0
        self._opened_at = self._clock()
        self._framed = False
        """True once somebody has seen the run."""
        if not self._has_ended:
            # One that has looked after the run for a while answers at once.
            starting = self._run.observer is None or self._run.state == "starting"
            history = self.history
            first = None if history is None else history.first_question()
            self._sockets.open(START_S if starting else OBSERVED_S, first)
        self._replay = Replay(self._database, self.store, self._clock, self.history, ended=self._has_ended)
        if self._has_ended:
            self._look_into_record()

    def _copy_of(self, rank: int) -> str | None:
        """Return where the log of a rank on another host is copied to; of an ended run, if it was copied before."""
        copies = self._logs_afar
        return None if copies is None or (self._has_ended and not copies.has(rank)) else copies.path(rank)

    def report(self) -> Report:
        """Return the report on the run; see `Source.report`."""
        # Here, because few runs fail while somebody looks.
        from ddptop.agent.observer.status import report

        return report.of(self.directory)

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

    def _show_next(self, ended: RunDir, started: RunDir) -> None:
        # Another run may be shown by now.
        if self.directory is ended:
            self._next = started

    @property
    def settled(self) -> bool:
        """True once all that was recorded earlier has been taken in."""
        return self._replay.is_current and self._replay.is_whole and not self._sockets.fills

    @property
    def _has_ended(self) -> bool:
        return self._run.state in ENDED_STATES

    @property
    def complete(self) -> bool:
        """True once a frame has all that there is: the record of an ended run, else what its observer knows."""
        if not self.settled or (self.store.liveness is None and not self._has_ended):
            return False
        if self._sockets.greeted and is_on_several(self._run) and not self.store.hosts.are_told:
            # Once a second the observer tells of the hosts: until then those that are silent seem to be as they were.
            return self.store.ended
        # Of ranks that have ended their observer alone knows the numbers, until it has written down the end of the run.
        supervised = not self._has_ended and self.store.liveness is not None and self.store.liveness.supervised
        if self._sockets.greeted or (self.store.ended and not supervised):
            return True
        return not supervised and not self.store.expected()

    @property
    def unmet(self) -> frozenset[int]:
        """Live ranks that have not been heard here; see `Store.unmet`."""
        return self.store.unmet()

    def poll(self) -> None:
        """Take in what has arrived, for a bounded time; waits for no message."""
        if self._framed and self.history is not None and not self.history.begun:
            # It is imported only now, after the first paint; what was answered meanwhile waits.
            _ = self.history.asked
        if self._next is not None:
            self._go_over(self._next)
        if not self._is_same():
            return
        now = self._clock()
        if now >= self._look_due:
            self._look()
            # Many ranks that start have many records; what it takes to read them leaves time for the screen.
            self._look_due = now + max(LOOK_S, 10 * (self._clock() - now))
        if self._is_replaced:
            return
        if now >= self._survey_due and not self._awaits_greeting(now):
            self._survey()
            if self.store.unlinked:
                meeting = read_meeting(self.directory.path)
                self.store.hosts.why = "" if meeting is None else meeting.why
            self._sockets.mend()
            self._survey_due = now + SURVEY_S
        self._sockets.follow_watched()
        deadline = self._clock() + DRAIN_S
        if self._replay.is_current or not self._generation:
            self._sockets.drain(deadline)
            if self._is_replaced:
                return
        # After a restart the history comes first; a fill brings the records that are missed meanwhile.
        if not self._replay.is_current:
            self._replay.take(deadline + CATCH_UP_S)
        self._replay.take_missed_events()
        self._sockets.take_fills()
        if not self._has_ended:
            self._sockets.ask_for_gaps()
            self._sockets.ask_for_history()
        if not self._sockets.fills:
            self._replay.advance(now + EARLIER_S)

    def _go_over(self, following: RunDir) -> None:
        self._next = None
        try:
            following.read()
        except RunDirError:
            # Removed under our eyes: the last frame stays.
            self._stamps = ()
            return
        # The same run with another number of ranks: who looks on was told of its events before.
        told = self.store.changes.events if following is self.directory else ()
        self.close()
        self._open(following)
        for event in told:
            self.store.changes.add(event)

    def poll_history(self) -> None:
        """Ask for the numbers that views look at, and take in those that have come; all else stays as it is."""
        self._sockets.ask_for_history()
        self._sockets.drain_answers()

    def _awaits_greeting(self, now: float) -> bool:
        """Say whether the observer will tell in a moment which ranks need not be looked up in the process table."""
        return self._brief and not self._sockets.greeted and now - self._opened_at < GREETING_S

    def _database(self) -> Path | None:
        """Return the file of the record, None where it is not to be read: that may write beside it."""
        file = self.directory.database
        return file if not self._onlooker and is_plain(file) else None

    def _look_into_record(self) -> None:
        """Ask the record of the run, which has ended, for the numbers that views look at."""
        history = self.history
        if history is None:
            return
        kept = None
        if (database := self._database()) is not None:
            from ddptop.agent.observer.history.saved import opened

            kept = opened(database, self._run.world, ended=True)
            self._replay.keep(kept)
        history.asked.end(kept)

    def watch(self, ranks: frozenset[int], logs: frozenset[int] = frozenset()) -> None:
        """Say which ranks' records are looked at, and whose logs; the records of a small group come anyway."""
        self._sockets.watch(ranks)
        if self._logs_afar is not None and not self._has_ended:
            models = self.store.ranks
            self._logs_afar.want([rank for rank in logs if rank in models and models[rank].far])

    def _look(self) -> None:
        """Read again what has changed in the run directory."""
        try:
            stamps = tuple((self.directory.path / name).stat().st_mtime for name in ("run.json", "ranks"))
            with contextlib.suppress(FileNotFoundError):
                # Only a run over several hosts has it.
                stamps += ((self.directory.path / "hosts" / "far.json").stat().st_mtime,)
            if stamps == self._stamps:
                return
            self._stamps = stamps
            run = self.directory.read()
        except (OSError, RunDirError):
            # Removed under our eyes: the last frame stays.
            return
        if run.run_id != self._run.run_id:
            self._let_go()
            return
        if run.world != self._run.world:
            # An elastic launcher goes on with another number of ranks, for which nothing here was made.
            self._next = self.directory
            return
        has_just_ended = run.state in ENDED_STATES and not self._has_ended
        self._run = run
        if has_just_ended:
            self._look_into_record()
        self._members = self.directory.members()
        far = {rank: each for rank, each in far_members(self.directory.path).items() if rank not in self._members}
        members = {**far, **self._members}
        self.store.know_run(self._run)
        self.store.know_members(members, far.keys())
        self._generation = max((member.generation for member in members.values()), default=0)
        self._replay.know(ended=self._has_ended, observer=run.observer)
        self._sockets.know(members, far.keys())

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
        self._sockets.close()
        if not self._has_ended:
            # What has become of it stood in its record.
            told = f"another run has its name: `ddptop attach {self._run.run}` shows that one"
            self._run = msgspec.structs.replace(self._run, state="lost", cause=told)
            self.store.know_run(self._run)

    def _survey(self) -> None:
        try:
            at = time.time()
            heard = self.store.heard(at, HEARD_S) if self._brief else frozenset()
            spared = self._spared(heard, at)
            found = self._meet(self.directory, self._members, heard | spared)
            self.store.know_liveness(liveness(self.directory, found, at, spared))
            self._surveyed = self._members
            if not (found.supervised or found.ended):
                self._sockets.hear_ranks(self._members)
        except RunDirError:
            return

    def _spared(self, heard: frozenset[int], at: float) -> frozenset[int]:
        """Return the ranks of a large group that are taken to live as before, because others have their turn.

        On a machine that is so busy that thousands are not heard in time, it would only become busier.
        """
        before = self.store.liveness
        if before is None or self._surveyed is not self._members or self.store.hearing.missed_s(at) is not None:
            return frozenset()
        return self._turns.spared(before.alive - heard)

    def advance(self, now: float) -> None:
        """Move on to this moment; see `Store.advance`."""
        self.store.advance(now)

    def frame(self) -> Frame:
        """Return the frame of the moment it has come to."""
        self._framed = True
        run = self._framer.frame()
        silent_s = None if run.state in ENDED_STATES else self.store.hearing.missed_s(run.at)
        ranks = tuple([self._with_log(rank) if rank.far else rank for rank in self._framer.ranks()])
        return whole(run, ranks, self._framer.hosts, self.history, silent_s)

    def _with_log(self, rank: RankFrame) -> RankFrame:
        """Return a rank of another host with the copy of its log, where there is one."""
        copy = None if rank.unkept or self._logs_afar is None else self._copy_of(rank.rank)
        return rank if copy is None else replace(rank, log=copy)

    def close(self) -> None:
        """Close all sockets; the run does not notice."""
        self._sockets.close()
        if self._logs_afar is not None:
            self._logs_afar.close()


def _logs_afar(directory: RunDir) -> LogsAfar:
    # Its temporary folder is of no use to `status` and the plain lines.
    from ddptop.tui.link.logs.afar import LogsAfar

    return LogsAfar(directory)


def _history(world: int) -> History:
    # Its tables are of no use to `status` and the plain lines.
    from ddptop.tui.model.history.history import History

    return History(world)


def liveness(directory: RunDir, found: survey.Survey, at: float, spared: frozenset[int] = frozenset()) -> Liveness:
    """Return who of a run is alive, by a look at its processes."""
    return Liveness(
        state=found.state,
        supervised=found.supervised,
        orphaned=found.orphaned,
        alive=frozenset(found.alive),
        cause=found.cause,
        cause_rank=found.cause_rank,
        frozen_at=None if (since := freezer.frozen(directory)) is None else since.at_ns / 1e9,
        seen=found.seen,
        at=at,
        spared=spared,
    )
