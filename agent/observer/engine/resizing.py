"""A job that an elastic launcher starts again with another number of ranks: another observer looks after it then.

All that an observer has is made for one number of ranks.  The agents record the present one, and the next observer
takes the run over as it would from one that was killed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from ddptop.agent.run import detached, hosts
from ddptop.agent.run.files.private import Claim
from ddptop.agent.run.rundir import Member, Run, RunDir, RunDirError

_log: Final = logging.getLogger("ddptop.observer")


def present_world(directory: RunDir, run: Run, world: int, members: Iterable[Member]) -> int:
    """Return the number of ranks with which the group was started last.

    Args:
        directory: of the run.
        run: its record.
        world: the number at the start of this observer.
        members: the present ranks here.
    """
    if run.launched or all(member.world == world for member in members):
        return world
    try:
        now = directory.read()
    except RunDirError:
        return world
    return now.world if now.run_id == run.run_id else world


def hand_over(directory: RunDir, claim: Claim) -> None:
    """Give the run up, and start an observer for the group as it is now; without it, the next onlooker does."""
    try:
        # Whether there are other hosts still, and which, the next one finds out; what it writes is not to be lost.
        hosts.forget(directory.path)
    except OSError as error:
        _log.error("record of the hosts: %s", error)
    claim.release()
    try:
        detached.start(directory).wait()
    except OSError as error:
        _log.error("starting another observer: %s", error)
