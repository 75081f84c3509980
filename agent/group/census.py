"""What is true of a run now, whoever looks after it: from its record, its ranks' records and the process table.

A run's own record is the supervisor's word.  Where no supervisor lives (it was killed, or the
job was started by hand), the processes decide, and the first to notice an end writes it down.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ddptop.agent.group import cause, processes
from ddptop.agent.rundir import ENDED_STATES, Member, Run, RunDir, is_alive

_START_PATIENCE_S: Final = 30.0
"""How long a run may have nobody at all before it counts as lost."""


@dataclass(frozen=True, slots=True)
class Census:
    """One run at one moment."""

    run: Run
    """The record; `state`, `exit_code` and cause below may know better."""
    state: str
    """`starting`, `running`, `finished`, `stopped`, `failed`, `killed` or `lost`."""
    supervised: bool
    orphaned: bool
    """True when torchrun is gone and ranks live on."""
    members: dict[int, Member]
    alive: tuple[int, ...]
    """Ranks whose process lives."""
    dead: tuple[int, ...]
    """Ranks that have reported once and whose process is gone."""
    exit_code: int | None = None
    cause: str | None = None
    cause_rank: int | None = None

    @property
    def ended(self) -> bool:
        """Say whether the run is over."""
        return self.state in ENDED_STATES


def survey(directory: RunDir) -> Census:
    """Return what is true now. Writes nothing.

    Raises:
        RunDirError: the run has no readable record.
    """
    run = directory.read()
    supervised = run.state not in ENDED_STATES and is_alive(run.supervisor)
    if not supervised:
        # It may have ended and written its last word between our two looks.
        run = directory.read()
    members = directory.members()
    alive = tuple(rank for rank, member in members.items() if is_alive(member.process))
    dead = tuple(rank for rank in members if rank not in alive)
    torchrun = is_alive(run.torchrun)
    orphaned = bool(alive) and run.torchrun is not None and not torchrun

    def census(state: str, exit_code: int | None = None, why: str | None = None, rank: int | None = None) -> Census:
        return Census(run, state, supervised, orphaned, members, alive, dead, exit_code, why, rank)

    if run.state in ENDED_STATES:
        return census(run.state, run.exit_code, run.cause, run.cause_rank)
    if supervised:
        return census(run.state)
    if torchrun or alive:
        return census("running" if len(members) >= run.world else "starting")
    nobody = run.torchrun is None and not members
    if nobody and run.supervisor is None and time.time_ns() - run.created_at_ns < _START_PATIENCE_S * 1e9:
        return census("starting")
    if nobody:
        said = cause.last_line(cause.tail(directory.supervisor_log))
        return census("lost", why=f"it ended before torchrun was started: {said}" if said else "it never started")
    judgement = cause.judge(run.world, members, None, cause.tail(directory.torchrun_log))
    return census(judgement.state, judgement.exit_code, judgement.cause, judgement.rank)


def settle(directory: RunDir) -> Census:
    """Return what is true now; where a run ended with nobody to write it down, write it and clear up."""
    census = survey(directory)
    if not census.ended or census.run.state in ENDED_STATES:
        return census
    run = msgspec.structs.replace(
        census.run,
        state=census.state,
        exit_code=census.exit_code,
        ended_at_ns=_end_of(census.members, directory),
        cause=census.cause,
        cause_rank=census.cause_rank,
    )
    directory.write(run)
    directory.remove_sockets()
    return survey(directory)


def kill(
    directory: RunDir,
    grace_s: float,
    who: str,
    rank: int | None = None,
    progress: processes.Progress = lambda line: None,
) -> str:
    """End a run, or one rank of it, that nobody supervises; return what was ended in one line.

    Where a supervisor lives, send it `wire.Kill` instead: it would take this for a failure.

    Raises:
        ValueError: there is no such rank, or it is over.
    """
    run = directory.read()
    if rank is not None:
        outcome = processes.end_rank(directory, run, rank, grace_s, progress)
        return f"rank {rank}: {outcome.text}"
    over = survey(directory)
    outcome = processes.end(directory, run, grace_s, progress)
    if over.ended:
        return f"already {settle(directory).state}: {outcome.text}"
    why = f"killed by {cause.clean(who, 100)}" if who else "killed"
    directory.update(state="killed", ended_at_ns=time.time_ns(), cause=why)
    directory.remove_sockets()
    return outcome.text


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
