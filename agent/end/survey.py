"""The present state of a run, by its record, its ranks' records and the process table.

The observer writes the record of a run.  Where no observer lives (it was killed, or could
not be started), the processes decide, and the first caller of `settle` records the end; `look` writes nothing.
Of ranks on other hosts it is known what the observer has recorded of them; no process there is looked up or signalled.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.control import journal
from ddptop.agent.end import cause, escalation, processes
from ddptop.agent.record import recording
from ddptop.agent.run import ends, hosts, identity, states
from ddptop.agent.run.files import tail
from ddptop.agent.run.files.private import Claim, Hold
from ddptop.agent.run.identity import ELSEWHERE, Row, boot, is_elsewhere, is_stopped
from ddptop.agent.run.rundir import Member, Process, Run, RunDir, RunDirError, is_alive
from ddptop.agent.text import clean_line
from ddptop.agent.wire.frames import ENDED

_START_PATIENCE_S: Final = 30.0
"""Seconds after its creation from which on a run without any process counts as lost."""
_DIES_S: Final = 1.0
"""Seconds that a process may take to end after SIGKILL."""
_LOOKS: Final = 3
"""Attempts to read a record that changes; one that changes without end must not block the caller."""
_RELEASE_S: Final = 1.0
"""Seconds for which an observer that was killed may still hold its claim."""
_CONCLUDES_S: Final = 5.0
"""Seconds that an observer may take to record the end of a run that another process has ended."""


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
    """Return the present state, as `look`; record an end that no observer has recorded, and remove the sockets.

    The end is recorded as an event as well, at the time when it came.
    """
    found = look(directory, members, heard)
    if not found.ended or found.run.state in ENDED:
        return found
    run = msgspec.structs.replace(
        found.run,
        state=found.state,
        exit_code=found.exit_code,
        ended_at_ns=_end_of(found.local, directory),
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
                text, level = states.describe_end(found.state, found.cause)
                # Before the record says that the run is over: after that another run may take its name.
                journal.note(directory, wire.Event(run.ended_at_ns or time.time_ns(), text, found.cause_rank, level))
                directory.write(run)
                directory.remove_sockets()
    except OSError:
        # The disk is full; the run is over all the same.
        return found
    return look(directory)


def kill(
    directory: RunDir,
    command: wire.Kill,
    progress: escalation.Progress = lambda line: None,
    countdown: escalation.Progress = lambda line: None,
) -> str:
    """Carry out a kill or a signal where no observer can do it; return the outcome in one line.

    Where an observer lives and answers, the caller sends it the command instead.  An observer that is stopped or
    silent reads in the record that the run is being killed, does not do it as well, and is ended last.

    Raises:
        NotOurs: there is no such rank or process, or it has ended; or no process of the run is visible here.
        Survived: some process did not end, or cannot be reached from here. The run is not recorded as over then.
    """
    run, members = directory.read(), directory.members()
    unseen = _Unseen(directory)
    if unseen.holds_all(run, members):
        raise escalation.NotOurs(f"run {run.run} {ELSEWHERE}; `ddptop kill {run.run}` has to be run in that one")
    process = None if command.pid is None else Process(command.pid, command.started or 0.0, boot())
    if command.signal is not None:
        targets = escalation.signal_targets(run, members, command.signal, command.rank, process)
        return escalation.deliver(targets, command.signal)
    if process is not None:
        outcome = escalation.end_process(directory, run, process, command.grace_s, progress, countdown)
        return _ended(run, outcome, outcome.text_of(process))
    if command.rank is not None:
        if command.rank not in members and (there := directory.far_members().get(command.rank)) is not None:
            raise escalation.NotOurs(
                f"rank {command.rank}: runs on {clean_line(there.host, 60)}, and the observer here, which would pass "
                f"it on, does not answer; `ddptop kill {run.run}` has to be run there"
            )
        outcome = escalation.end_rank(directory, run, command.rank, command.grace_s, progress, countdown)
        return _ended(run, outcome, f"rank {command.rank}: {outcome.text}")
    over = look(directory)
    who = clean_line(command.who, 100)
    if not over.ended:
        # For an observer, present or later, in case this process is ended meanwhile.
        with contextlib.suppress(OSError, RunDirError):
            directory.update(killed_by=who or "somebody")
    # The claim keeps a new observer from starting meanwhile; a living one has it already.
    claim = None if over.supervised else _claim(directory)
    try:
        outcome = escalation.end(directory, run, escalation.Grace(command.grace_s), progress, countdown)
        outcome = _with_survivors(outcome, _out_of_reach(run, directory.members(), unseen, outcome.left))
        if over.supervised and not outcome.survivors:
            _dismiss(directory, run.observer, progress)
            claim = _claim(directory)
            if run.observer is not None and unseen.may_live(run.observer):
                outcome = _with_survivors(outcome, {"observer": run.observer})
        _ended(run, outcome, outcome.text)
        if not over.ended:
            _write_end(directory, f"killed by {who}" if who else "killed")
            if unknown := _elsewhere(directory):
                raise escalation.Survived(f"{outcome.text}; {'; '.join(escalation.unheard(unknown))}")
            return outcome.text
    finally:
        if claim is not None:
            claim.release()
    return f"already {settle(directory).state}: {outcome.text}"


def end_unrecorded(directory: RunDir, grace_s: float, progress: escalation.Progress = lambda line: None) -> str | None:
    """End a run whose folder or record is not sound, found by its mark in the environments of processes.

    Return the outcome.

    None: no process here has that folder for the one of its run.

    Raises:
        Survived: some process did not end.
    """
    of_folder = processes.marked_by(directory.path)
    if not of_folder:
        return None
    text = ""
    for run_id in of_folder:
        run = Run(directory.name, run_id, "", (), 1, None, None, 0, True, owner=os.getuid())
        outcome = escalation.end(directory, run, escalation.Grace(grace_s), progress)
        number = outcome.ranks + outcome.helpers
        ended = f"{number} process{'' if number == 1 else 'es'}"
        lacks = "its record cannot be read" if directory.path.exists() else "its folder is gone"
        text = _ended(run, outcome, f"{lacks}; {ended} of it ended, {len(outcome.survivors)} left")
    return text


def _elsewhere(directory: RunDir) -> dict[str, int]:
    """Return by other host the number of its ranks that may still train: only an observer reaches them."""
    gone, here = hosts.gone_ranks(hosts.read_hosts(directory.path)), directory.members()
    left = [
        clean_line(member.host, 60)
        for rank, member in directory.far_members().items()
        if rank not in here and hosts.may_train(member, gone)
    ]
    return dict(sorted(Counter(left).items()))


def _ended(run: Run, outcome: escalation.Outcome, text: str) -> str:
    """Return the outcome; raise `Survived` where processes survive."""
    if outcome.survivors:
        raise escalation.Survived(
            f"{text}; not all of it has ended: `ddptop kill {run.run}` tries again (another user's process only as "
            "that user or root, another container's only in there)"
        )
    return text


def _with_survivors(outcome: escalation.Outcome, others: Mapping[str, Process]) -> escalation.Outcome:
    found = [f"{name} with pid {process.pid} ({_why_left(process)})" for name, process in others.items()]
    return replace(outcome, survivors=(*outcome.survivors, *found))


def _why_left(process: Process) -> str:
    if is_elsewhere(process):
        return ELSEWHERE
    above = process.pid in processes.lineage(os.getpid(), identity.table())
    return "this command was started from within it, and ends nobody above itself" if above else "too slow to go"


def _out_of_reach(
    run: Run, members: Mapping[int, Member], unseen: _Unseen, reported: Collection[int]
) -> dict[str, Process]:
    """Return by name the processes that may live and are not `reported`: ancestors of this one, or in a container."""
    found = {} if run.torchrun is None else {run.leader: run.torchrun}
    found |= {
        f"rank {rank}": each.process
        for rank, each in members.items()
        if is_alive(each.process) or unseen.may_train(each)
    }
    return {
        name: process
        for name, process in found.items()
        if unseen.may_live(process) and (is_elsewhere(process) or process.pid not in reported)
    }


def _dismiss(directory: RunDir, observer: Process | None, progress: escalation.Progress) -> None:
    """Wait for an observer whose run this process has ended: it may record the end; one that does not gets SIGKILL."""
    if observer is None:
        return
    if is_stopped(observer):
        # It has nothing left to end, and can still write the messages that it has received.
        processes.send(observer, signal.SIGCONT)
    _await_end(observer, _CONCLUDES_S)
    if processes.send(observer, signal.SIGKILL):
        progress(f"SIGKILL to the observer (pid {observer.pid}), which did not answer for {_CONCLUDES_S:g} s")
        _await_end(observer, _DIES_S)


def _await_end(process: Process, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while is_alive(process) and time.monotonic() < deadline:
        time.sleep(0.02)


def _write_end(directory: RunDir, why: str) -> None:
    with contextlib.suppress(RunDirError):
        # An observer that was continued has recorded the end, after which another run may have the name.
        if directory.read().state not in ENDED:
            with contextlib.suppress(OSError):
                directory.update(state="killed", ended_at_ns=time.time_ns(), cause=why)
            directory.remove_sockets()


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


def _claim(directory: RunDir) -> Claim | None:
    """Return the claim on a run, which the threads of a killed observer may hold for a moment longer.

    None: another process holds it, or the disk has no room for the file of the lock.
    """
    deadline = time.monotonic() + _RELEASE_S
    with contextlib.suppress(OSError):
        while time.monotonic() < deadline:
            if (claim := Claim.acquire(directory.path)) is not None:
                return claim
            time.sleep(0.01)
    return None


def _end_of(members: dict[int, Member], directory: RunDir) -> int:
    times = [member.ended.at_ns for member in members.values() if member.ended]
    # A rank without a record of its end has the date of its log.
    times += [_changed_at_ns(Path(member.log)) for member in members.values() if member.log and not member.ended]
    return max(times, default=0) or _changed_at_ns(directory.path / "run.json")


def _changed_at_ns(path: Path) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
