"""The role of this host in its run: the head, a branch, or alone, and what that means for the relay.

A run on one host costs nothing here.  Of one on several the observer on the host of rank 0 listens, and that of any
other host connects; which one this is may change with a restart of the group.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Collection, Set
from typing import Any, Final

import msgspec
import zmq

from ddptop.agent import wire
from ddptop.agent.control.wakeup import WakeUp
from ddptop.agent.observer.hosts.branch import FIRST_S, Branch
from ddptop.agent.observer.hosts.head import Head
from ddptop.agent.observer.hosts.link import opening
from ddptop.agent.observer.hosts.link.branch import Branch as BranchLink
from ddptop.agent.observer.hosts.link.side import Arrived, Changed, Side
from ddptop.agent.observer.hosts.questions import Answer, OtherHosts, Questions, unanswered
from ddptop.agent.observer.hosts.sides import Known, News, ThisHost
from ddptop.agent.record.recording import MOST_VERDICTS
from ddptop.agent.run import hosts
from ddptop.agent.run.files import marks
from ddptop.agent.run.hosts import FarRanks, Listen
from ddptop.agent.run.rundir import Member
from ddptop.agent.run.states import ranks_here
from ddptop.agent.text import Complaint, clean_line
from ddptop.agent.wire import HostFrame

_log = logging.getLogger("ddptop.observer")

_ALL_COME_S: Final = 30.0
"""Seconds within which the ranks of this host come, where nobody has told their number: the others are elsewhere."""
_EVERY_S: Final = 1.0
_SOON_S: Final = 0.2
"""Seconds between two words on hosts where many change at once."""
_NUMBERS_OF_HEAD: Final = MOST_VERDICTS // 2
"""Verdicts of a host that judges by itself for a while are numbered from here on."""
_NEWS_S: Final = 10.0
"""Seconds between two records of the hosts of which only the figures have changed."""


class LinkedHosts(OtherHosts):
    """The other hosts, for the relay's thread; `role`, `hosts`, `ask`, `cause` and `conclude` are for any thread."""

    def __init__(self, context: zmq.Context[Any], here: ThisHost, wake: WakeUp, answered: WakeUp) -> None:
        """Look for nobody before the first turn.

        Args:
            context: of the sockets of a branch.
            here: this host.
            wake: wakes the relay's thread.
            answered: wakes the observer's main thread, which asks.
        """
        self._context = context
        self._here = here
        self._run = here.run
        self._path = here.directory.path
        self._wake = wake
        self._answered = answered
        self._began = time.monotonic()
        self._due = self._opened_at = 0.0
        self._side: Head | Branch | None = None
        self._link: Side | None = None
        self._listen: Listen | None = None
        """Where this branch connects, or has tried to."""
        self._problem = ""
        self._told_alone = False
        self._states: tuple[HostFrame, ...] = ()
        self._recorded: dict[int, Member] = {}
        """The records of the ranks on other hosts, as they are in the run directory."""
        self._written: tuple[Any, float] = ((), 0.0)
        self._has_changed = False
        """Something has changed at a host that was not told."""
        self._told_at = -math.inf
        self._closed = False

    @property
    def role(self) -> str:
        """`head`, `branch` where this host is linked to the head, or `alone`."""
        side = self._side
        return "head" if isinstance(side, Head) else "branch" if side is not None and side.is_linked else "alone"

    def hosts(self) -> tuple[HostFrame, ...]:
        """Return what is known of the other hosts."""
        here = set(self._here.members)
        return tuple(each for each in self._states if here.isdisjoint(each.ranks))

    def ask(self, host: str, command: wire.Command, timeout_s: float) -> Answer:
        """Send a command to the observer of a host."""
        side = self._side
        if side is None or self._closed:
            return unanswered()
        return side.questions.ask(host, command, timeout_s)

    @property
    def refused(self) -> int:
        """Messages of other hosts that could not be read, or cannot be true."""
        of_link = 0 if self._link is None else sum(self._link.refused.values())
        return of_link + self._here.elsewhere.refused + (0 if self._side is None else self._side.refused)

    @property
    def unheard(self) -> frozenset[int]:
        """The ranks of hosts that are not heard."""
        return frozenset() if self._side is None else self._side.unheard

    @property
    def judges(self) -> bool:
        """Say whether this host judges the run: the head does, and who has no link to it."""
        if isinstance(self._side, Head) or not self._are_several():
            return True
        if isinstance(self._side, Branch) and (self._side.is_linked or self._side.was_linked):
            return not self._side.is_linked
        return time.monotonic() - self._began > FIRST_S

    @property
    def last_verdicts(self) -> tuple[wire.Verdict, ...] | None:
        """What the head has told to be wrong last, at a branch for which it judges; None where this host judges."""
        side = self._side
        return side.verdicts if isinstance(side, Branch) and (side.is_linked or side.is_over) else None

    @property
    def cause(self) -> str | None:
        """The first cause of the run's end as the head tells it, at a branch."""
        side = self._side
        return side.cause if isinstance(side, Branch) else None

    @property
    def reserved(self) -> tuple[wire.Verdict, ...]:
        """At a branch, one that is over: the numbers up to its own are those of the head's verdicts."""
        if not isinstance(self._side, Branch):
            return ()
        return (wire.Verdict(_NUMBERS_OF_HEAD, "", "", 0, 0),)

    def sockets(self) -> list[zmq.Socket[Any]]:
        """Return the sockets on which something may arrive."""
        return [] if self._link is None else self._link.sockets

    @property
    def pause_s(self) -> float | None:
        """Seconds until the next `turn` is due, if nothing arrives; None where there is no link."""
        if self._side is None or self._link is None:
            return None
        if self._here.news:
            return 0.0
        soon_s = self._told_at + _SOON_S - time.monotonic() if self._has_changed else None
        pauses = (self._side.questions.pause_s, soon_s)
        return max(0.0, min([self._link.pause_s, *(pause for pause in pauses if pause is not None)]))

    def pass_up(self, requester: bytes, rank: int | None, command: wire.Command) -> bool:
        """Hand a question of an onlooker here to the head; return False where it is to be answered here."""
        return isinstance(self._side, Branch) and self._side.pass_up(requester, rank, command)

    def subscribe_up(self, new: Set[bytes]) -> bool:
        """Hand the subscriptions of onlookers here to the head; return False where they are answered here."""
        if not (isinstance(self._side, Branch) and self._side.is_linked):
            return False
        self._side.want(new)
        return True

    @property
    def own_ranks(self) -> Collection[int] | None:
        """The ranks of this host, whose frames alone are made here while the head makes those of all; else None."""
        world = self._run.world
        return [rank for rank in self._here.members if rank < world] if self._here.elsewhere.shows_head else None

    def look_at(self, topics: Set[bytes]) -> None:
        """Have these topics of single ranks of a large group at once."""
        if self._side is not None:
            self._side.look_at(topics)

    def lose(self, rank: int) -> None:
        """Take note that the process of a rank on this host is gone."""
        if rank in self._here.members:
            self._here.gone.add(rank)
            self._announce()

    def take_questions(self) -> None:
        """Take in the questions of the main thread, which `turn` asks."""
        if self._side is not None:
            self._side.questions.take()

    def turn(self, generation: int, subscribed: Set[bytes]) -> list[News]:
        """Take in what other hosts have sent, and once a second do what is due; return what is new, in order.

        Args:
            generation: the newest one of which a rank was found here.
            subscribed: the topics to which onlookers here subscribe.
        """
        if self._closed:
            return []
        self._here.generation, self._here.subscribed = generation, subscribed
        if self._link is not None and self._side is not None:
            for each in self._link.turn():
                match each:
                    case Arrived():
                        self._side.arrived(*each)
                    case Changed():
                        self._side.changed(each.peer)
                        self._has_changed = True
                    case _:
                        self._here.news.append(each)
            self._side.turn()
        now = time.monotonic()
        if self._has_changed and now >= self._told_at + _SOON_S:
            self._tell()
        if now >= self._due and self._are_several():
            self._due = now + _EVERY_S
            self._each_second()
        news, self._here.news = self._here.news, []
        return news

    def _are_several(self) -> bool:
        """Say whether the run has ranks on other hosts."""
        run, here = self._run, len(self._here.members)
        if run.outside:
            # Without agents nobody has told the hosts of one another.
            return False
        if run.nodes is not None and run.nodes > 1:
            return True
        if run.local_world is None and (run.launched or time.monotonic() - self._began < _ALL_COME_S):
            return False
        return ranks_here(run, here) < run.world

    def _each_second(self) -> None:
        if self._here.read():
            self._announce()
        if self._side is None or isinstance(self._side, Branch):
            self._take_side()
        elif 0 not in self._here.members and self._here.members:
            # The group was restarted, and rank 0 is on another host now.
            self._leave()
        if self._side is not None:
            self._side.each_second()
            self._tell()
        self._tell_alone()

    def _announce(self) -> None:
        if self._link is not None:
            self._link.update(self._hello())

    def _hello(self) -> wire.HostHello:
        """Return how this host introduces itself: where the hosts number their runs differently, as the head does."""
        own, head = self._here.hello(), self._listen
        return own if head is None else msgspec.structs.replace(own, run=head.run, run_id=head.run_id)

    def _take_side(self) -> None:
        if not self._here.members:
            return
        if 0 in self._here.members:
            if isinstance(self._side, Branch):
                self._leave()
            self._open(None)
        elif not (isinstance(self._side, Branch) and self._side.is_linked):
            try:
                listen = opening.find(self._here.directory, self._run)
            except (Complaint, OSError, ValueError) as problem:
                self._complain(problem)
                return
            if listen is not None and listen != self._listen:
                self._leave()
                self._open(listen)

    def _open(self, listen: Listen | None) -> None:
        """Listen as the head, or connect to it."""
        questions = Questions(self._wake, self._answered)
        try:
            if listen is None:
                link = self._link = opening.open_head(self._here.directory, self._run, self._hello())
                self._side = Head(self._here, link, questions)
                hosts.write_listen(self._path, hosts.LISTEN, link.listen)
            else:
                self._listen, self._opened_at = listen, time.monotonic()
                self._link = BranchLink(self._context, listen, self._hello())
                self._side = Branch(self._here, self._link, questions)
        except (Complaint, OSError, ValueError, zmq.ZMQError) as problem:
            self._leave()
            self._complain(problem)
            return
        if self._problem:
            self._problem = ""
            self._note_why("")

    def _complain(self, problem: Exception) -> None:
        text = f"other hosts are not linked: {problem}"
        if text != self._problem:
            self._problem = text
            self._here.say(text, "error")
            self._note_why(clean_line(str(problem), 200))

    def _note_why(self, why: str) -> None:
        """Note why there is no link, for all who read the run directory."""
        rendezvous = hosts.read_rendezvous(self._path)
        try:
            if rendezvous is not None and rendezvous.why != why:
                hosts.write_rendezvous(self._path, msgspec.structs.replace(rendezvous, why=why))
        except OSError as error:
            _log.error("record of the rendezvous: %s", error)

    def _leave(self) -> None:
        """End the link."""
        side, self._side = self._side, None
        if isinstance(side, Head):
            with contextlib.suppress(OSError):
                marks.owned(self._path / "hosts" / hosts.LISTEN).unlink()
        if side is not None:
            side.questions.close()
        if self._link is not None:
            self._link.close()
        self._link, self._listen = None, None
        self._here.elsewhere.forget()

    def _tell(self) -> None:
        """Tell and write down what is known of the hosts and of the ranks there."""
        side = self._side
        self._has_changed, self._told_at = False, time.monotonic()
        if side is None:
            return
        self._states = side.states()
        self._here.news.append(Known(self._states))
        plain = [(each.host, each.state, each.ranks, each.gone, each.agent_version) for each in self._states]
        before, at = self._written
        now = time.monotonic()
        try:
            if plain != before or now - at > _NEWS_S:
                self._written = plain, now
                hosts.write_hosts(self._path, self._states)
            members = side.members()
            if members != self._recorded:
                hosts.write_far(self._path, FarRanks(tuple(members[rank] for rank in sorted(members))))
                self._recorded = members
        except OSError as error:
            _log.error("record of the hosts: %s", error)

    def _tell_alone(self) -> None:
        """Say once that there is no link, where the head is known and does not answer."""
        if self._told_alone or time.monotonic() - self._opened_at < FIRST_S:
            return
        if isinstance(self._side, Branch) and not self._side.was_linked and self._listen is not None:
            self._told_alone = True
            where = ", ".join(self._listen.addresses[:3])
            missed = f"{self._listen.host}, the host of rank 0, does not answer at {where}"
            self._here.say(f"{missed}: {self._here.alone}", "warning")

    def conclude(self) -> None:
        """Take note that the run is over: that the head leaves is no news then."""
        if isinstance(side := self._side, Branch):
            side.is_over = True

    def close(self) -> None:
        """Leave the other hosts, after what waits was sent."""
        self._closed = True
        self._leave()
