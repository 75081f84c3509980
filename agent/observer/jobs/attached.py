"""A job that something else launched: its launcher, as far as it is known, and when the job is over.

It is only watched.  No exit status tells of its end; its launcher may be torchrun, a scheduler, a notebook or nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from ddptop.agent.run import states
from ddptop.agent.run.rundir import Member, Process, Run, RunDir, is_alive

_SETTLES_S: Final = 2.0
"""Seconds after the end of the last rank after which the job is over, where no launcher is known, or it lives on."""
_COMES_S: Final = 30.0
"""Seconds after the start of its observer after which a job is over of which no rank has reported."""


class Attached:
    """The launcher of such a job, in the place of torchrun."""

    exit_code: Final[int | None] = None
    """Only its parent gets it."""

    def __init__(self, directory: RunDir, run: Run, clock: Callable[[], float] = time.monotonic) -> None:
        self.run = run
        """Its record, as it was written last."""
        self._directory = directory
        self._clock = clock
        self._lived_at = clock()
        """When a rank was last seen alive."""

    @property
    def process(self) -> Process | None:
        """None where the ranks have no common launcher on this host, or none that they know."""
        return self.run.torchrun

    def is_over(self) -> bool:
        """Say whether the launcher has ended; True where none is known."""
        return not is_alive(self.process)

    def is_deserted(self, alive: Collection[int], known: Collection[int]) -> bool:
        """Say whether no rank lives, and none is to be expected.

        Nothing starts others once the launcher is gone. A torchrun that lives may start the next generation, unless all
        ranks have ended without an error: then it goes, or is part of a program that goes on with other things.

        Args:
            alive: ranks that were watched and have not ended.
            known: ranks that have reported since the observer began.
        """
        members = {} if alive else self._directory.members()
        now = self._clock()
        if alive or any(is_alive(member.process) for member in members.values()):
            self._lived_at = now
            return False
        if not self.is_over() and not self._has_finished(members):
            return False
        if self.process is not None and self.is_over() and known:
            return True
        return now - self._lived_at > (_SETTLES_S if known else _COMES_S)

    def _has_finished(self, members: Mapping[int, Member]) -> bool:
        ended = [member.ended for member in members.values() if member.ended is not None and not member.ended.exit_code]
        return len(ended) == len(members) >= states.ranks_here(self.run, len(members))
