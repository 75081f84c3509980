"""What is true of a run now, whoever looks after it: from its record, its ranks' records and the process table.

A run's own record is the supervisor's word.  Where no supervisor lives (it was killed, or the
job was started by hand), the processes decide, and the first to `settle` an end writes it down; an onlooker does not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.observer.end import cause, escalation, processes
from ddptop.agent.run import identity, states
from ddptop.agent.run.files import tail
from ddptop.agent.run.files.private import Claim, Hold
from ddptop.agent.run.identity import ELSEWHERE, Row, boot, is_elsewhere, is_stopped
from ddptop.agent.run.rundir import ENDED_STATES, Member, Process, Run, RunDir, RunDirError, is_alive
from ddptop.agent.text import clean_line

_START_PATIENCE_S: Final = 30.0
"""How long a run may have nobody at all before it counts as lost."""
_DIES_S: Final = 1.0
"""How long a process may take to go after SIGKILL."""
_LOOKS: Final = 3
"""How often a record that changes is read again; one that changes without end must not hold up who looks."""
_LETS_GO_S: Final = 1.0
"""How long a supervisor that was killed may still hold its claim."""
_CONCLUDES_S: Final = 5.0
"""How long a supervisor may take to write down the end of a run that was ended without it."""


@dataclass(frozen=True, slots=True)
class Survey:
    """One run at one moment."""

    run: Run
    """The record; `state`, `exit_code` and cause below may know better."""
    state: str
    """`starting`, `running`, `finished`, `stopped`, `failed`, `killed` or `lost`."""
    supervised: bool
    """True also where its supervisor belongs to another container, and may well live."""
    orphaned: bool
    """True when torchrun is gone and ranks live on."""
    members: dict[int, Member]
    alive: tuple[int, ...]
    """Ranks whose process lives, or may well do so out of sight."""
    dead: tuple[int, ...]
    """Ranks that have reported once and whose process is gone."""
    seen: Mapping[int, Row] = field(default_factory=dict)
    """By rank, how its live process is; those that the process table was not asked for are left out."""
    exit_code: int | None = None
    cause: str | None = None
    cause_rank: int | None = None

    @property
    def ended(self) -> bool:
        """Say whether the run is over."""
        return self.state in ENDED_STATES


def look(directory: RunDir, members: dict[int, Member] | None = None, heard: Collection[int] = frozenset()) -> Survey:
    """Return what is true now. Writes nothing.

    Args:
        directory: the run's.
        members: what `directory.members()` would return, where it is known already.
        heard: ranks that gave a sign of life just now, so that the process table need not be asked.

    Raises:
        RunDirError: the run has no readable record.
    """
    run = directory.read()
    unseen = _Unseen(directory)
    supervised = run.state not in ENDED_STATES and unseen.may_live(run.supervisor)
    for _ in range(_LOOKS):
        if supervised:
            break
        # Between our two looks the supervisor may have written its last word, or its first one.
        before, run = run, directory.read()
        if run == before:
            break
        supervised = run.state not in ENDED_STATES and unseen.may_live(run.supervisor)
    known = directory.members() if members is None else members
    rows = {rank: identity.look(member.process) for rank, member in known.items() if rank not in heard}
    seen = {rank: row for rank, row in rows.items() if row is not None}
    living = {rank for rank, member in known.items() if rank in heard or rank in seen or unseen.may_train(member)}
    alive = tuple(rank for rank in known if rank in living)
    dead = tuple(rank for rank in known if rank not in living)
    if not supervised and run.supervisor is not None and run.torchrun is None and run.state not in ENDED_STATES:
        # The supervisor may have been killed between the start of torchrun and the note of it.
        run = msgspec.structs.replace(run, torchrun=processes.find_torchrun(run))
    torchrun = unseen.may_live(run.torchrun)
    orphaned = bool(alive) and run.torchrun is not None and not torchrun

    def found(state: str, exit_code: int | None = None, why: str | None = None, rank: int | None = None) -> Survey:
        return Survey(run, state, supervised, orphaned, known, alive, dead, seen, exit_code, why, rank)

    if run.state in ENDED_STATES:
        return found(run.state, run.exit_code, run.cause, run.cause_rank)
    where = ELSEWHERE if unseen.holds_all(run, known) else None
    if supervised:
        return found(run.state, why=where)
    if torchrun or alive:
        return found(states.of_reports(known, run.world), why=where)
    nobody = run.torchrun is None and not known
    if nobody and run.supervisor is None and abs(time.time_ns() - run.created_at_ns) < _START_PATIENCE_S * 1e9:
        return found("starting")
    if nobody:
        said = cause.last_line(tail.end(directory.supervisor_log))
        return found("lost", why=f"it ended before {run.leader} was started: {said}" if said else "it never started")
    if run.killed_by is not None:
        if processes.find(run, known):
            # A helper has outlived its rank: it is not killed yet, and can be killed once more.
            return found(states.of_reports(known, run.world))
        # Whoever ended it was ended at that, too.
        return found("killed", 128 + signal.SIGTERM, f"killed by {run.killed_by}")
    # What a rank wrote at its end decides, and a list known before may lack it.
    known = directory.members()
    judgement = cause.judge(run.world, known, None, tail.end(directory.torchrun_log), leader=run.leader)
    return found(judgement.state, judgement.exit_code, judgement.cause, judgement.rank)


def settle(directory: RunDir, members: dict[int, Member] | None = None, heard: Collection[int] = frozenset()) -> Survey:
    """Return what is true now, as `look`; where a run ended with nobody to write it down, write it and clear up."""
    found = look(directory, members, heard)
    if not found.ended or found.run.state in ENDED_STATES:
        return found
    run = msgspec.structs.replace(
        found.run,
        state=found.state,
        exit_code=found.exit_code,
        ended_at_ns=_end_of(found.members, directory),
        cause=found.cause,
        cause_rank=found.cause_rank,
    )
    try:
        claim = Claim.take(directory.path)
        if claim is None:
            # Somebody else has met it at the same moment, and writes it down.
            return found
        with claim:
            # The name may have been given to another run while this one was looked at.
            now = directory.read()
            if now.run_id == run.run_id and now.state not in ENDED_STATES:
                directory.write(run)
                directory.remove_sockets()
    except OSError:
        # A full disk: it is over all the same.
        return found
    return look(directory)


def kill(
    directory: RunDir,
    command: wire.Kill,
    progress: escalation.Progress = lambda line: None,
    countdown: escalation.Progress = lambda line: None,
) -> str:
    """Carry out a kill or a signal where no supervisor can do it; return what was done in one line.

    Where a supervisor lives and answers, send it the command instead.  One that is stopped or silent is not
    to do the same at the same time: it learns from the record that this is no failure, and goes last.

    Raises:
        NotOurs: there is no such rank or process, or it is over; or nothing of the run is visible here.
        Survived: something would not die, or cannot be reached from here. The run is not called over then.
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
        outcome = escalation.end_rank(directory, run, command.rank, command.grace_s, progress, countdown)
        return _ended(run, outcome, f"rank {command.rank}: {outcome.text}")
    over = look(directory)
    who = clean_line(command.who, 100)
    if not over.ended:
        # Whoever else looks after the run, now or when this process is ended at it, finds out from this.
        with contextlib.suppress(OSError, RunDirError):
            directory.update(killed_by=who or "somebody")
    # Held, so that no new supervisor begins meanwhile; one that lives has it already.
    claim = None if over.supervised else _claim(directory)
    try:
        outcome = escalation.end(directory, run, command.grace_s, progress, countdown)
        outcome = _with_survivors(outcome, _out_of_reach(run, directory.members(), unseen, outcome.left))
        if over.supervised and not outcome.survivors:
            _dismiss(directory, run.supervisor, progress)
            claim = _claim(directory)
            if run.supervisor is not None and unseen.may_live(run.supervisor):
                outcome = _with_survivors(outcome, {"supervisor": run.supervisor})
        _ended(run, outcome, outcome.text)
        if not over.ended:
            _write_end(directory, f"killed by {who}" if who else "killed")
            return outcome.text
    finally:
        if claim is not None:
            claim.release()
    return f"already {settle(directory).state}: {outcome.text}"


def _ended(run: Run, outcome: escalation.Outcome, text: str) -> str:
    """Return what was done; raise `Survived` where something is left."""
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
    run: Run, members: Mapping[int, Member], unseen: _Unseen, told: Collection[int]
) -> dict[str, Process]:
    """Return by name what of the run may live and is none of those `told`: above this process, or in a container."""
    found = {} if run.torchrun is None else {run.leader: run.torchrun}
    found |= {
        f"rank {rank}": each.process
        for rank, each in members.items()
        if is_alive(each.process) or unseen.may_train(each)
    }
    return {
        name: process
        for name, process in found.items()
        if unseen.may_live(process) and (is_elsewhere(process) or process.pid not in told)
    }


def _dismiss(directory: RunDir, supervisor: Process | None, progress: escalation.Progress) -> None:
    """See a supervisor off whose run was ended without it: it may write down the end, or goes by SIGKILL."""
    if supervisor is None:
        return
    if is_stopped(supervisor):
        # Nothing is left that it could end, and what it has recorded but not written yet is still written.
        processes.send(supervisor, signal.SIGCONT)
    deadline = time.monotonic() + _CONCLUDES_S
    while is_alive(supervisor) and time.monotonic() < deadline:
        time.sleep(0.02)
    if processes.send(supervisor, signal.SIGKILL):
        progress(f"SIGKILL to the supervisor (pid {supervisor.pid}), which did not answer for {_CONCLUDES_S:g} s")
        deadline = time.monotonic() + _DIES_S
        while is_alive(supervisor) and time.monotonic() < deadline:
            time.sleep(0.02)


def _write_end(directory: RunDir, why: str) -> None:
    with contextlib.suppress(RunDirError):
        # A supervisor that was let go has written it, and from then on the name may be another run's.
        if directory.read().state not in ENDED_STATES:
            with contextlib.suppress(OSError):
                directory.update(state="killed", ended_at_ns=time.time_ns(), cause=why)
            directory.remove_sockets()


class _Unseen:
    """What is known of the processes of a run that cannot be seen from here: whether anybody holds its folder."""

    def __init__(self, directory: RunDir) -> None:
        self._path = directory.path
        self._is_free: bool | None = None

    def _may_live(self, process: Process | None) -> bool:
        """Say whether a process lives in another pid namespace, as far as is known here."""
        if not is_elsewhere(process):
            return False
        if self._is_free is None:
            # Each rank and the supervisor hold it as long as they live, and a container that is killed lets go. Nobody
            # does while ranks start, at first or anew: that is not long after the last word of somebody.
            self._is_free = self._is_quiet() and Hold.is_free(self._path)
        return not self._is_free

    def _is_quiet(self) -> bool:
        try:
            words = [(self._path / name).stat().st_mtime for name in (".", "run.json", "ranks")]
        except OSError:
            return False
        return time.time() - max(words) > _START_PATIENCE_S

    def may_live(self, process: Process | None) -> bool:
        """Say whether a process lives, or may well do so out of sight."""
        return is_alive(process) or self._may_live(process)

    def may_train(self, member: Member) -> bool:
        """Say whether a rank whose process cannot be seen from here may still train."""
        # What has told of its end needs no look: its process would seem to live as long as others hold the folder.
        return member.ended is None and self._may_live(member.process)

    def holds_all(self, run: Run, members: Mapping[int, Member]) -> bool:
        """Say whether the whole run belongs to another pid namespace: a supervisor here sees its ranks."""
        found = [run.supervisor, run.torchrun, *(member.process for member in members.values())]
        known = [process for process in found if process is not None]
        return bool(known) and all(map(self._may_live, known))


def _claim(directory: RunDir) -> Claim | None:
    """Take the claim on a run; its threads may hold it a moment longer than a supervisor seems to live.

    None: somebody holds it, or there is no room for the file that it is held by.
    """
    deadline = time.monotonic() + _LETS_GO_S
    with contextlib.suppress(OSError):
        while time.monotonic() < deadline:
            if (claim := Claim.take(directory.path)) is not None:
                return claim
            time.sleep(0.01)
    return None


def _end_of(members: dict[int, Member], directory: RunDir) -> int:
    times = [member.ended.at_ns for member in members.values() if member.ended]
    # A rank that left no word was still heard of in its log.
    times += [_changed_at_ns(Path(member.log)) for member in members.values() if member.log and not member.ended]
    return max(times, default=0) or _changed_at_ns(directory.path / "run.json")


def _changed_at_ns(path: Path) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
