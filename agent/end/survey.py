"""The present state of a run, by its record, its ranks' records and the process table.

The observer writes the record of a run.  Where no observer lives (it was killed, or could not be started), the
processes decide: `settle` records the end, for the client that opens the run, and `look` writes nothing.
Of ranks on other hosts it is known what the observer has recorded of them; no process there is looked up or signalled.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from ddptop.agent.end import cause, processes
from ddptop.agent.record import recording
from ddptop.agent.run import ends, hosts, identity, states
from ddptop.agent.run.files import tail
from ddptop.agent.run.files.private import Claim, Hold
from ddptop.agent.run.identity import ELSEWHERE, Row, is_elsewhere
from ddptop.agent.run.rundir import Member, Process, Run, RunDir, is_alive
from ddptop.agent.wire.frames import ENDED

_START_PATIENCE_S: Final = 30.0
"""Seconds after its creation from which on a run without any process counts as lost."""
_LOOKS: Final = 3
"""Attempts to read a record that changes; one that changes without end must not block the caller."""


@dataclass(frozen=True, slots=True)
class Survey:
    """One run at one moment."""

    run: Run
    """The record, which may be older than `state`, `exit_code` and cause below."""
    state: str
    """One of `starting`, `running` and `states.ENDED`."""
    supervised: bool
    """True where its observer lives, or may live in another container."""
    orphaned: bool
    """True when torchrun is gone and ranks live on."""
    members: dict[int, Member]
    """The records of all ranks, those on other hosts included."""
    alive: tuple[int, ...]
    """Ranks whose process lives, or may live in another container or on another host."""
    dead: tuple[int, ...]
    """Ranks that have reported and whose process is gone."""
    seen: Mapping[int, Row] = field(default_factory=dict)
    """By rank, the row of its living process in the process table, without the ranks of the argument `heard`."""
    exit_code: int | None = None
    cause: str | None = None
    cause_rank: int | None = None
    kind: str = ""
    """Name of the kind of a failure, as `end.kinds` has it."""
    far: frozenset[int] = frozenset()
    """Those of `members` that are on other hosts."""

    @property
    def local(self) -> dict[int, Member]:
        """The records of the ranks on this host, whose processes can be looked up."""
        return {rank: member for rank, member in self.members.items() if rank not in self.far}

    @property
    def ended(self) -> bool:
        """True once the run is over."""
        return self.state in ENDED


def look(directory: RunDir, members: dict[int, Member] | None = None, heard: Collection[int] = frozenset()) -> Survey:
    """Return the present state of a run. Writes nothing.

    Args:
        directory: the directory of the run.
        members: a recent result of `directory.members()`, where the caller has one.
        heard: ranks that have just given a sign of life, and are not looked up in the process table.

    Raises:
        RunDirError: the run has no readable record.
    """
    run = directory.read()
    unseen = _Unseen(directory)
    supervised = run.state not in ENDED and unseen.may_live(run.observer)
    for _ in range(_LOOKS):
        if supervised:
            break
        # Between record and process table, the observer may have written its last record, or its first one.
        before, run = run, directory.read()
        if run == before:
            break
        supervised = run.state not in ENDED and unseen.may_live(run.observer)
    known = directory.members() if members is None else members
    rows = {rank: identity.look(member.process) for rank, member in known.items() if rank not in heard}
    seen = {rank: row for rank, row in rows.items() if row is not None}
    living = {rank for rank, member in known.items() if rank in heard or rank in seen or unseen.may_train(member)}
    alive = tuple(rank for rank in known if rank in living)
    dead = tuple(rank for rank in known if rank not in living)
    unobserved = run.launched and not supervised and run.observer is not None
    if unobserved and run.torchrun is None and run.state not in ENDED:
        # The observer may have been killed between the start of torchrun and the record of it.
        run = msgspec.structs.replace(run, torchrun=processes.find_torchrun(run))
    torchrun = unseen.may_live(run.torchrun)
    orphaned = bool(alive) and run.torchrun is not None and not torchrun
    far = {rank: each for rank, each in directory.far_members().items() if rank not in known}
    gone = hosts.gone_ranks(hosts.read_hosts(directory.path) if far else ())
    over = run.state in ENDED
    training = tuple(rank for rank, each in far.items() if not over and hosts.may_train(each, gone))

    def found(
        state: str, exit_code: int | None = None, why: str | None = None, rank: int | None = None, kind: str = ""
    ) -> Survey:
        everyone = dict(sorted({**far, **known}.items())) if far else known
        return Survey(
            run,
            state,
            supervised,
            orphaned,
            everyone,
            tuple(sorted((*alive, *training))) if far else alive,
            tuple(sorted((*dead, *(far.keys() - set(training))))) if far else dead,
            seen,
            exit_code,
            why,
            rank,
            kind,
            frozenset(far),
        )

    if run.state in ENDED:
        return found(run.state, run.exit_code, run.cause, run.cause_rank, run.cause_kind)
    where = ELSEWHERE if unseen.holds_all(run, known) else None
    if supervised:
        if where is None and known and not alive and not far and _has_returned(run, torchrun_lives=torchrun):
            # Its observer will write that down in a moment.
            judgement = first_cause(directory, run, directory.members())
            return found(judgement.state, judgement.exit_code, judgement.cause, judgement.rank, judgement.kind)
        return found(run.state, why=where or run.cause)
    if torchrun or alive:
        return found(states.of_reports(run, known, time.time_ns()), why=where)
    nobody = run.torchrun is None and not known
    if nobody and run.observer is None and abs(time.time_ns() - run.created_at_ns) < _START_PATIENCE_S * 1e9:
        return found("starting")
    if nobody and not run.launched:
        return found("lost", why="none of its ranks has left a record")
    if nobody:
        said = cause.last_line(tail.end(directory.observer_log))
        return found("lost", why=f"it ended before {run.leader} was started: {said}" if said else "it never started")
    if run.killed_by is not None:
        if processes.find(run, known):
            # A helper has outlived its rank: the kill is incomplete, and can be repeated.
            return found(states.of_reports(run, known, time.time_ns()))
        # The process that killed the run ended before it recorded the end.
        return found("killed", 128 + signal.SIGTERM, f"killed by {run.killed_by}")
    # The ranks' records of their ends decide, and the caller's list may be older than those.
    known = directory.members()
    judgement = first_cause(directory, run, known)
    return found(judgement.state, judgement.exit_code, judgement.cause, judgement.rank, judgement.kind)


def _has_returned(run: Run, *, torchrun_lives: bool) -> bool:
    """Say whether the launcher of a job that was started by hand has ended, so that nothing starts ranks any more."""
    return not run.launched and run.torchrun is not None and not torchrun_lives and run.killed_by is None


def first_cause(directory: RunDir, run: Run, members: Mapping[int, Member]) -> cause.FirstCause:
    """Return the end of a run's ranks, by what is on the disk; `members` are those of this host."""
    far = {rank: each for rank, each in directory.far_members().items() if each.ended is not None}
    here = members
    everyone = {**far, **here}
    world = min(run.world, states.ranks_here(run, len(here)) + len(far.keys() - here.keys()))
    seen = ends.read(directory.path, max((member.generation for member in here.values()), default=0))
    log = tail.end(directory.torchrun_log)
    judgement = cause.judge(
        world,
        everyone,
        None,
        log,
        leader=run.leader,
        directory=directory,
        deaths=seen,
        elsewhere=everyone.keys() - here.keys(),
        hangs=recording.read_verdicts(directory.database),
    )
    # Only of the first one it is said, and thousands of processes are not looked up for it.
    lingering = [rank for rank in here if rank == judgement.rank and is_alive(here[rank].process)]
    return cause.with_lingering(cause.with_host(judgement, everyone), here, lingering)


def settle(directory: RunDir, members: dict[int, Member] | None = None, heard: Collection[int] = frozenset()) -> Survey:
    """Return the present state, as `look`; record an end that no observer has recorded, and remove the sockets."""
    found = look(directory, members, heard)
    if not found.ended or found.run.state in ENDED:
        return found
    run = msgspec.structs.replace(
        found.run,
        state=found.state,
        exit_code=found.exit_code,
        ended_at_ns=_end_of(found, directory),
        cause=found.cause,
        cause_rank=found.cause_rank,
        cause_kind=found.kind,
    )
    try:
        claim = Claim.acquire(directory.path)
        if claim is None:
            # Another process records the end at this moment.
            return found
        with claim:
            # Another run may have the name by now.
            now = directory.read()
            if now.run_id == run.run_id and now.state not in ENDED:
                directory.write(run)
                directory.remove_sockets()
    except OSError:
        # The disk is full; the run is over all the same.
        return found
    return look(directory)


class _Unseen:
    """Processes of a run in other containers: whether they may live, by the locks on its folder."""

    def __init__(self, directory: RunDir) -> None:
        self._path = directory.path
        self._is_free: bool | None = None

    def _may_live(self, process: Process | None) -> bool:
        """Say whether a process of another pid namespace may live."""
        if not is_elsewhere(process):
            return False
        if self._is_free is None:
            # Each rank and the observer hold the folder as long as they live, also in a container. While ranks start
            # or restart none does, but then a record was written not long ago.
            self._is_free = self._is_quiet() and Hold.is_free(self._path)
        return not self._is_free

    def _is_quiet(self) -> bool:
        try:
            times = [(self._path / name).stat().st_mtime for name in (".", "run.json", "ranks")]
        except OSError:
            return False
        return time.time() - max(times) > _START_PATIENCE_S

    def may_live(self, process: Process | None) -> bool:
        """Say whether a process lives here, or may live in another pid namespace."""
        return is_alive(process) or self._may_live(process)

    def may_train(self, member: Member) -> bool:
        """Say whether a rank in another pid namespace may still train."""
        # A rank with a recorded end would otherwise seem to live as long as others hold the folder.
        return member.ended is None and self._may_live(member.process)

    def holds_all(self, run: Run, members: Mapping[int, Member]) -> bool:
        """Say whether all processes of the run may live in another pid namespace, and none is visible here."""
        found = [run.observer, run.torchrun, *(member.process for member in members.values())]
        known = [process for process in found if process is not None]
        return bool(known) and all(map(self._may_live, known))


def _end_of(found: Survey, directory: RunDir) -> int:
    members = found.local
    times = [member.ended.at_ns for member in members.values() if member.ended]
    # A rank without a record of its end has the date of its log.
    times += [_changed_at_ns(Path(member.log)) for member in members.values() if member.log and not member.ended]
    if found.run.killed_by is not None or not any(times):
        # Written last when somebody began to end it.
        times.append(_changed_at_ns(directory.path / "run.json"))
    return max(times)


def _changed_at_ns(path: Path) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
