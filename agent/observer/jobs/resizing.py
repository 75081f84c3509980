"""A job that an elastic launcher starts with another number of ranks: another observer looks after it then.

All that an observer has is made for one number of ranks.  The agents record the present one, and the next observer
takes the run over as it would from one that was killed.  That of a launched run becomes its own successor, in the same
process: it is torchrun's parent, and only a parent learns the exit status.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable
from typing import Final

from ddptop.agent.launcher import detached
from ddptop.agent.run import hosts
from ddptop.agent.run.files.private import Claim
from ddptop.agent.run.rundir import Member, Run, RunDir, RunDirError
from ddptop.agent.text import plural

_log: Final = logging.getLogger("ddptop.observer")


def present_world(directory: RunDir, run: Run, world: int, members: Iterable[Member]) -> int:
    """Return the number of ranks with which the group was started last.

    Args:
        directory: of the run.
        run: its record.
        world: the number at the start of this observer.
        members: the present ranks here.
    """
    if (run.launched and not run.spans_hosts) or all(member.world == world for member in members):
        return world
    try:
        now = directory.read()
    except RunDirError:
        return world
    return now.world if now.run_id == run.run_id else world


def event_of(world: int, before: int, *, is_first: bool) -> tuple[str, str]:
    """Return text and level of the event that tells of another number of ranks than `before`.

    Args:
        world: the present number.
        before: the number that was known.
        is_first: no rank was up before, of a launch over as many hosts as come.
    """
    if is_first:
        return f"the group begins with {plural(world, 'rank')}, of {before} at most", "info"
    return f"the group was started again: its world is {world}, and was {before}", "warning"


def hand_over(directory: RunDir, claim: Claim, *, in_place: bool) -> None:
    """Give the run up, and start an observer for the group as it is now; without it, the next onlooker does.

    Args:
        directory: of the run.
        claim: on the run.
        in_place: replace this process, from which this function does not return then.
    """
    try:
        # Whether there are other hosts still, and which, the next one finds out; what it writes is not to be lost.
        hosts.forget(directory.path)
    except OSError as error:
        _log.error("record of the hosts: %s", error)
    claim.release()
    if in_place:
        _begin_anew()
    try:
        detached.start(directory).wait()
    except OSError as error:
        _log.error("starting another observer: %s", error)


def _begin_anew() -> None:
    """Run the command line of this process again, in its place; where that fails, return."""
    logging.shutdown()
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    except OSError as error:
        _log.error("beginning anew: %s", error)
