"""The end of a run over several hosts: what the others tell of theirs, how long they are awaited, what they are told.

The run is over when each host's part is over.  The head waits for branches and tells them how it ended, so that the
records on all hosts say the same; of a host that is not heard for some seconds after that, the end is not known.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from ddptop.agent import wire
from ddptop.agent.observer.hosts import far
from ddptop.agent.observer.hosts.ends import SILENT_S, Parts, Telling
from ddptop.agent.observer.hosts.watch import Watch
from ddptop.agent.run.rundir import ENDED_STATES, Member
from ddptop.agent.text import clean_line, plural

if TYPE_CHECKING:
    from ddptop.agent.observer.end.cause import FirstCause
    from ddptop.agent.observer.hosts.far import FarHosts
    from ddptop.agent.run.ends import Death

CONCLUDE_S: Final = 2.0
"""Seconds in which branches take note of the end of the run."""
_CONCLUDED_S: Final = 3.0
"""Seconds after the end of the processes of a killed host in which the head tells how the run ended."""


class Others:
    """The other hosts of the run, at its end; for use from the observer's main thread."""

    def __init__(
        self,
        host: str,
        hosts: FarHosts,
        say: Callable[[str, str, int | None], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Know nothing yet.

        Args:
            host: the name of this one.
            hosts: the observers of the others.
            say: publishes an event.
            clock: a monotonic clock.
        """
        self.hosts = hosts
        self.parts = Parts()
        self.conclusion: wire.Conclude | None = None
        """The end of the run, as the head has told it."""
        self._say = say
        self._clock = clock
        self._watch = Watch(say)
        self._telling = Telling(host, hosts, clock)
        self._was_branch = False
        self._over_at: float | None = None
        """When this host's part of the run was seen to be over."""
        self._killed_at: float | None = None
        """Of a branch, when it was seen that all its processes were killed."""
        self._unlinked_at: float | None = None
        """Of a branch, since when it has no link."""

    def ended(self) -> set[int]:
        """Return the ranks on other hosts whose end is known."""
        return {*self.parts.deaths, *self.parts.members}

    def turn(self, generation: int, deaths: Mapping[int, Death], members: Mapping[int, Member]) -> bool:
        """Tell of hosts that are lost or heard again, and tell the head of the ends here; return whether one was lost.

        Args:
            generation: the present one.
            deaths: by rank of this host, what was seen of the end of its process.
            members: the records of the ranks of this host.
        """
        role = self.hosts.role
        self._was_branch = self._was_branch or role == "branch"
        if self._was_branch:
            self._telling.turn(generation, deaths, members, over=self._over_at is not None)
        return role == "head" and self._watch.turn(self.hosts.hosts(), self.parts.over)

    def take(self, message: wire.HostEnd | wire.Conclude) -> str | None:
        """Take what another observer tells of the end of the run, or return why not."""
        if isinstance(message, wire.Conclude):
            if self.hosts.role != "branch" or message.state not in ENDED_STATES:
                return "only the head tells branches of the end of the run"
            self.conclusion = message
            return None
        state = next((each for each in self.hosts.hosts() if each.host == message.host), None)
        if state is None or self.hosts.role != "head":
            return "not known here yet; tell it again"
        self.parts.take(message, state)
        return None

    def are_awaited(self, *, over: bool) -> bool:
        """Say whether the run goes on elsewhere; `over`: this host's part is over."""
        if not over:
            self._over_at = None
            return True
        now = self._clock()
        self._over_at = self._over_at or now
        if self.hosts.role == "head":
            return any(self.parts.is_awaited(each, now - self._over_at) for each in self.hosts.hosts())
        if self.conclusion is not None or not self._was_branch:
            return False
        if self.hosts.role == "branch":
            self._unlinked_at = None
            return True
        self._unlinked_at = self._unlinked_at or now
        return now - self._unlinked_at < SILENT_S

    def is_to_conclude(self) -> bool:
        """At a branch of a run that was killed, say whether the head is about to tell how it ended."""
        if self.hosts.role != "branch" or self.conclusion is not None:
            return False
        now = self._clock()
        self._killed_at = self._killed_at or now
        return now - self._killed_at < _CONCLUDED_S

    def conclude(self, judgement: FirstCause, *, killed: bool) -> int:
        """As the head, tell all branches how the run ended, and say which hosts did not answer; return when it was."""
        now_ns = time.time_ns()
        if self.hosts.role != "head":
            return now_ns if self.conclusion is None else self.conclusion.ended_at_ns or now_ns
        if not killed:
            # Before the branches leave, which record it as well.
            for each in self.parts.lost(self.hosts.hosts()):
                unknown = plural(len(each.ranks), "rank")
                self._say(f"{clean_line(each.host, 60)} did not answer: {unknown} unknown", "warning", None)
        told = wire.Conclude(
            0, judgement.state, judgement.exit_code, judgement.cause, judgement.rank, judgement.kind, now_ns
        )
        answers: queue.SimpleQueue[wire.Reply | None] = queue.SimpleQueue()
        asked = [each.host for each in self.hosts.hosts() if each.state == far.LINKED]
        for host in asked:
            self.hosts.ask(host, told, CONCLUDE_S, answers.put)
        give_up = self._clock() + CONCLUDE_S
        for _ in asked:
            with contextlib.suppress(queue.Empty):
                answers.get(timeout=max(0.0, give_up - self._clock()))
        return now_ns
