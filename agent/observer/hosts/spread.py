"""A kill or a signal that goes to several hosts at once: who was asked, who has answered, and the sum of the answers.

A host that does not answer is named, with the ranks of which nothing is known because of it.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from ddptop.agent import wire
from ddptop.agent.observer.end.escalation import Outcome, counted
from ddptop.agent.observer.hosts import far
from ddptop.agent.observer.hosts.far import FarHosts, Nobody
from ddptop.agent.text import clean_line, plural

_LOST_S: Final = 3.0
"""Seconds without a link after which no answer of a host is waited for."""
_MOST_NAMED: Final = 4
ELSEWHERE: Final = "other hosts"
"""Stands for hosts of which nothing was ever heard."""


@dataclass(frozen=True, slots=True)
class Total:
    """The result of an ending on all hosts."""

    ranks: int
    helpers: int
    hosts: tuple[str, ...]
    """The hosts that have answered, this one first."""
    survivors: tuple[str, ...] = ()
    unknown: Mapping[str, int] = field(default_factory=dict)
    """By host that did not answer, its ranks."""

    @property
    def text(self) -> str:
        """The result in one line."""
        ended = counted(self.ranks, self.helpers)
        where = f" on {self.hosts[0]}" if len(self.hosts) == 1 else f" on {plural(len(self.hosts), 'host')}"
        left = f"{len(self.survivors)} left" + "".join(f"; {survivor}" for survivor in self.survivors)
        return f"{ended}{where} ended, {left}" + "".join(f"; {each}" for each in unheard(self.unknown))

    @property
    def done(self) -> bool:
        """True where nothing is left, on any host."""
        return not self.survivors and not self.unknown


def unheard(unknown: Mapping[str, int]) -> list[str]:
    """Return `node2 did not answer: 4 ranks unknown` for each such host, of many hosts the first and their number."""
    told = [
        f"{host} {'are not linked' if host == ELSEWHERE else 'did not answer'}: {plural(ranks, 'rank')} unknown"
        for host, ranks in unknown.items()
    ]
    if len(told) <= _MOST_NAMED:
        return told
    rest = list(unknown.values())[_MOST_NAMED:]
    ranks = plural(sum(rest), "rank")
    return [*told[:_MOST_NAMED], f"{plural(len(rest), 'further host')} did not answer: {ranks} unknown"]


class Spread:
    """One command to several hosts; for use from one thread."""

    def __init__(
        self,
        hosts: FarHosts,
        command: wire.Kill,
        patience_s: float,
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        spared: Collection[int] = (),
    ) -> None:
        """Send the command to each host that has ranks which are not `spared`, because they are known to have ended.

        Args:
            hosts: the other hosts.
            command: to all of them alike.
            patience_s: seconds that a host has to answer.
            wake: called at each answer, on any thread.
            clock: a monotonic clock.
            spared: ranks that nobody has to end.
        """
        self.replies: dict[str, wire.Reply] = {}
        """By host, its answer."""
        self.unknown: dict[str, int] = {}
        """By host that will not answer, its ranks."""
        self._hosts = hosts
        self._clock = clock
        self._wake = wake
        self._answers: queue.SimpleQueue[tuple[str, wire.Reply | None]] = queue.SimpleQueue()
        self._waiting: dict[str, int] = {}
        """By host that is to answer, its ranks."""
        self._lost_at: dict[str, float] = {}
        self._give_up = clock() + patience_s
        for each in hosts.hosts():
            ranks = [rank for rank in each.ranks if rank not in spared and rank not in each.gone]
            if each.state == far.GONE:
                if ranks:
                    self.unknown[each.host] = len(ranks)
                continue
            self._waiting[each.host] = len(ranks)
            hosts.ask(each.host, command, patience_s, self._taker(each.host))

    @classmethod
    def unasked(cls, known: tuple[wire.HostState, ...], spared: Collection[int] = ()) -> Spread:
        """Return one of which no host was asked, and so none has answered."""
        made = cls(Nobody(), wire.Kill(0, 0.0), 0.0)
        for each in known:
            if ranks := [rank for rank in each.ranks if rank not in spared and rank not in each.gone]:
                made.unknown[each.host] = len(ranks)
        return made

    def _taker(self, host: str) -> far.Then:
        def take(reply: wire.Reply | None) -> None:
            self._answers.put((host, reply))
            self._wake()

        return take

    @property
    def is_waiting(self) -> bool:
        """Say whether a host may still answer."""
        self._take_in()
        return bool(self._waiting)

    def _take_in(self) -> None:
        while not self._answers.empty():
            host, reply = self._answers.get()
            if host not in self._waiting:
                continue
            if reply is not None:
                del self._waiting[host]
                self.replies[host] = reply
            else:
                self._lose(host)
        now = self._clock()
        states = {each.host: each.state for each in self._hosts.hosts()}
        for host in list(self._waiting):
            if states.get(host) == far.LINKED:
                self._lost_at.pop(host, None)
            elif now - self._lost_at.setdefault(host, now) > _LOST_S:
                self._lose(host)
            if now > self._give_up and host in self._waiting:
                self._lose(host)

    def _lose(self, host: str) -> None:
        if ranks := self._waiting.pop(host):
            self.unknown[host] = ranks

    def total(self, here: str, outcome: Outcome, missing: int = 0) -> Total:
        """Return the sum of the answers and of what has ended on this host.

        Args:
            here: the name of this host.
            outcome: of this host.
            missing: ranks of the run that no known host has.
        """
        ranks, helpers, left = outcome.ranks, outcome.helpers, list(outcome.survivors)
        unknown = dict(self.unknown)
        answered = [here]
        for host, reply in self.replies.items():
            if reply.census is None:
                # A refusal, or an observer of another version: it says in words what it has done.
                left.append(f"{clean_line(host, 60)}: {clean_line(reply.text, 200)}")
                continue
            answered.append(host)
            ranks += reply.census.ranks
            helpers += reply.census.helpers
            left += [f"{clean_line(host, 60)}: {clean_line(each, 200)}" for each in reply.census.left]
        if missing > 0:
            unknown[ELSEWHERE] = missing
        return Total(ranks, helpers, tuple(answered), tuple(left), unknown)
