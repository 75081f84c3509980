"""The kill of a run that has no observer and gets none: on a full disk, without room for a process, with a lost record.

All else is done by the run's observer.  Here alone somebody who looks on ends processes, by the library that the
observer has for that, and under the claim, so that no observer begins meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ddptop.agent.client import runs
from ddptop.agent.end import escalation, processes, survey
from ddptop.agent.run import hosts, identity
from ddptop.agent.run.files.private import Claim
from ddptop.agent.run.identity import ELSEWHERE, is_elsewhere, may_live
from ddptop.agent.run.rundir import Process, Run, RunDir, RunDirError
from ddptop.agent.text import clean_line
from ddptop.agent.wire.frames import ENDED
from ddptop.agent.wire.vocabulary.refusals import Refused

_RELEASE_S: Final = 1.0
"""Seconds for which the threads of an observer that was killed may still hold its claim."""

Tell = Callable[[str], None]


def kill(directory: RunDir, who: str, grace_s: float, tell: Tell) -> str | None:
    """End what is left of a run, and return the outcome in one line; None where another observer looks after it by now.

    Raises:
        Refused: something has not ended, or cannot be reached from here; the run is not recorded as over then.
    """
    run = directory.read()
    before = survey.look(directory)
    try:
        claim = _claim(directory)
    except OSError:
        # There is no room for the file of the lock, for an observer neither.
        claim = None
    else:
        if claim is None and run.state not in ENDED:
            return None
    try:
        if not before.ended:
            _note(directory, who)
        outcome = escalation.end(directory, run, escalation.Grace(grace_s), tell)
        if not before.ended:
            # The first one may have found no room.
            _note(directory, who)
    finally:
        if claim is not None:
            claim.release()
    after = survey.settle(directory)
    if not after.ended:
        outcome = replace(outcome, survivors=(*outcome.survivors, *_beyond_reach(after, outcome)))
    _check(run, outcome, outcome.text)
    if before.ended:
        return f"already {after.state}: {outcome.text}"
    if unknown := _elsewhere(directory):
        raise Refused(f"{outcome.text}; {'; '.join(escalation.unheard(unknown))}")
    return outcome.text


def kill_unrecorded(run: runs.Run, grace_s: float, tell: Tell) -> str | None:
    """End a run whose folder or record is not sound, found by its mark in the environments of processes.

    Return the outcome; None where the record is sound, or no process here has that folder for the one of its run.

    Raises:
        Refused: some process did not end.
    """
    with contextlib.suppress(RunDirError):
        run.record()
        return None
    path, text = run.directory.path, None
    for run_id in processes.marked_by(path):
        known = Run(run.name, run_id, "", (), 1, None, None, 0, True, owner=os.getuid())
        outcome = escalation.end(run.directory, known, escalation.Grace(grace_s), tell)
        number = outcome.ranks + outcome.helpers
        ended = f"{number} process{'' if number == 1 else 'es'}"
        lacks = "its record cannot be read" if path.exists() else "its folder is gone"
        text = f"{lacks}; {ended} of it ended, {len(outcome.survivors)} left"
        _check(known, outcome, text)
    return text


def _claim(directory: RunDir) -> Claim | None:
    """Return the claim on a run, None where an observer holds it.

    Raises:
        OSError: the disk has no room for the file of the lock.
    """
    deadline = time.monotonic() + _RELEASE_S
    while (claim := Claim.acquire(directory.path)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return claim


def _note(directory: RunDir, who: str) -> None:
    """Have the record say by whom the run is killed: whoever concludes it reads that there."""
    with contextlib.suppress(OSError, RunDirError):
        if directory.read().killed_by is None:
            directory.update(killed_by=clean_line(who, 100) or "somebody")


def _check(run: Run, outcome: escalation.Outcome, text: str) -> None:
    if outcome.survivors:
        raise Refused(
            f"{text}; not all of it has ended: `ddptop kill {run.run}` tries again (another user's process only as "
            "that user or root, another container's only in there)"
        )


def _beyond_reach(now: survey.Survey, outcome: escalation.Outcome) -> list[str]:
    """Return a text for each process that lives and got no signal: ancestors of this one, or in a container."""
    found = {} if now.run.torchrun is None else {now.run.leader: now.run.torchrun}
    found |= {f"rank {rank}": now.local[rank].process for rank in now.alive if rank in now.local}
    return [
        f"{name} with pid {process.pid} ({_why_left(process)})"
        for name, process in found.items()
        if may_live(process) and (is_elsewhere(process) or process.pid not in outcome.left)
    ]


def _why_left(process: Process) -> str:
    if is_elsewhere(process):
        return ELSEWHERE
    above = process.pid in processes.lineage(os.getpid(), identity.table())
    return "this command was started from within it, and ends nobody above itself" if above else "too slow to go"


def _elsewhere(directory: RunDir) -> dict[str, int]:
    """Return by other host the number of its ranks that may still train: only an observer reaches them."""
    gone, here = hosts.gone_ranks(hosts.read_hosts(directory.path)), directory.members()
    left = [
        clean_line(member.host, 60)
        for rank, member in directory.far_members().items()
        if rank not in here and hosts.may_train(member, gone)
    ]
    return dict(sorted(Counter(left).items()))
