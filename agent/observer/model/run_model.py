"""The model of one run, with what its directory says: the records, the recording and the processes.

The observer of a run holds one and tells it what it hears; of what an earlier one has heard the recording tells.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

from ddptop.agent import wire
from ddptop.agent.end import freezer, survey
from ddptop.agent.observer.model.framer import Framer
from ddptop.agent.observer.model.situation import Liveness
from ddptop.agent.observer.model.store import Store
from ddptop.agent.observer.model.turns import Turns
from ddptop.agent.record import recording
from ddptop.agent.run.hosts import far_file, read_rendezvous
from ddptop.agent.run.rundir import Member, Run, RunDir, RunDirError
from ddptop.agent.run.switches.thresholds import USUAL, Thresholds
from ddptop.agent.wire import EACH_RECORD

LOOK_S: Final = 0.25
"""Seconds between two looks at the records of the run and its ranks."""
SURVEY_S: Final = 1.0
"""Seconds between two looks at the processes."""
HEARD_S: Final = 2.0
"""A rank of a large group heard so lately lives."""
RECENT_RECORDS: Final = 8192
"""Messages of the recording that the numbers of a run are made of; plots alone look back further."""


class RunModel:
    """One run; for use from one thread."""

    def __init__(
        self,
        directory: RunDir,
        run: Run,
        thresholds: Thresholds = USUAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Know of a run what its record says.

        Args:
            directory: where its records are.
            run: its record, as it is now.
            thresholds: from where on something is said.
            clock: seconds, for what is due.
        """
        self._directory = directory
        self._clock = clock
        logs = {rank: str(directory.rank_log(rank)) for rank in range(run.world)} if run.launched else {}
        self.store = Store(run, thresholds, brief=run.world > EACH_RECORD)
        self.framer = Framer(self.store, logs)
        self._recording: Iterator[wire.Telemetry | wire.Verdict] | None = self._recorded(directory.database)
        self._members: dict[int, Member] = {}
        """Those of this host: no other process is looked up here."""
        self._surveyed: dict[int, Member] | None = None
        """The members whose processes were looked up last."""
        self._turns = Turns()
        self._stamps: tuple[float, ...] = ()
        self._look_due = self._survey_due = 0.0

    @property
    def is_recalled(self) -> bool:
        """True once the recording was read."""
        return self._recording is None

    def recall(self, deadline: float) -> None:
        """Read on in the recording until a moment of the clock."""
        for message in self._recording or ():
            if isinstance(message, wire.Verdict):
                self.store.changes.recall_verdict(message)
            else:
                self.store.recall(message, time.time())
            if self._clock() > deadline:
                return
        self._recording = None

    def hurry(self) -> None:
        """Have the next `look` and `survey` do it at once: somebody asks who may just have changed something."""
        self._look_due = self._survey_due = 0.0

    def look(self, *, at_once: bool = False) -> bool:
        """Read again what has changed in the directory, where that is due; return whether it was.

        Raises:
            RunDirError: there is no readable record of this run any more.
        """
        now = self._clock()
        if now < self._look_due and not at_once:
            return False
        changed = self._look()
        # Many ranks that start have many records; what it takes to read them leaves time for others.
        self._look_due = now + max(LOOK_S, 10 * (self._clock() - now))
        return changed

    def _look(self) -> bool:
        path = self._directory.path
        try:
            stamps = tuple((path / name).stat().st_mtime for name in ("run.json", "ranks"))
        except OSError as problem:
            raise RunDirError(f"{path}: {problem.strerror}") from problem
        with contextlib.suppress(FileNotFoundError):
            # Only a run over several hosts has it.
            stamps += (far_file(path).stat().st_mtime,)
        if stamps == self._stamps:
            return False
        run = self._directory.read()
        if run.run_id != self.store.run.run_id:
            raise RunDirError("another run has its name")
        self._stamps = stamps
        self._members = self._directory.members()
        far = {rank: each for rank, each in self._directory.far_members().items() if rank not in self._members}
        self.store.know_run(run)
        self.store.know_members({**far, **self._members}, far.keys())
        return True

    def survey(self) -> None:
        """Look at the processes of the run on this host, where that is due.

        Raises:
            RunDirError: there is no readable record of this run any more.
        """
        now = self._clock()
        if now < self._survey_due:
            return
        self._survey_due = now + SURVEY_S
        at = time.time()
        heard = self.store.heard(at, HEARD_S) if self.store.is_brief else frozenset()
        spared = self._spared(heard, at)
        found = survey.look(self._directory, self._members, heard | spared)
        self.store.know_liveness(liveness(self._directory, found, at, spared))
        self._surveyed = self._members
        if self.store.unlinked:
            rendezvous = read_rendezvous(self._directory.path)
            self.store.hosts.why = "" if rendezvous is None else rendezvous.why

    def _spared(self, heard: frozenset[int], at: float) -> frozenset[int]:
        """Return the ranks of a large group that are taken to live as before, because others have their turn.

        On a machine that is so busy that thousands are not heard in time, it would only become busier.
        """
        before = self.store.liveness
        if before is None or self._surveyed is not self._members or self.store.last_heard.missed_s(at) is not None:
            return frozenset()
        return self._turns.spared(before.alive - heard)

    def _recorded(self, database: Path) -> Iterator[wire.Telemetry | wire.Verdict]:
        """Yield what is recorded, what the numbers of now are made of last."""
        yield from recording.unreadable(database)
        yield from self._starts(database)
        yield from recording.read_beats(database)
        yield from recording.read_events(database)
        yield from recording.read_verdicts(database)
        yield from recording.read_steps(database, RECENT_RECORDS)

    def _starts(self, database: Path) -> Iterator[wire.Telemetry]:
        """Yield who the ranks were, one generation after the other, and how far they came in each but the newest."""
        hellos = [hello for hello in recording.read_ranks(database) if isinstance(hello, wire.Hello)]
        newest = max((hello.generation for hello in hellos), default=0)
        for generation, ranks in groupby(hellos, key=attrgetter("generation")):
            yield from ranks
            if generation < newest:
                yield from recording.read_last_steps(database, generation, 2 * self.store.run.world)


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
