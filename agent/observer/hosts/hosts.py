"""The other hosts of a run: which side of a link this host is, and what that means for the relay.

A run on one host costs nothing here.  Of one on several the observer on the host of rank 0 listens, and that of any
other host connects; which one this is may change with a restart of the group.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import zmq

from ddptop.agent import wire
from ddptop.agent.observer.end import last_words
from ddptop.agent.observer.hosts.branch import FIRST_S, Branch
from ddptop.agent.observer.hosts.elsewhere import Elsewhere
from ddptop.agent.observer.hosts.far import Then
from ddptop.agent.observer.hosts.head import Head
from ddptop.agent.observer.hosts.link.side import Link
from ddptop.agent.observer.hosts.links import OPENING, Calls, Opening
from ddptop.agent.observer.hosts.parts import Local, Parts
from ddptop.agent.observer.record.recording import MOST_VERDICTS
from ddptop.agent.run import hosts
from ddptop.agent.run.hosts import FarRanks, Listen
from ddptop.agent.run.rundir import Member
from ddptop.agent.run.states import ranks_here
from ddptop.agent.text import Complaint, clean_line
from ddptop.agent.wire import HostState

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


class OtherHosts:
    """The other hosts, for the relay's thread; `role`, `hosts` and `ask` are for any thread."""

    def __init__(
        self,
        parts: Parts,
        elsewhere: Elsewhere,
        opening: Opening = OPENING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look for nobody before the first turn."""
        self.role = "alone"
        self._parts = parts
        self._run = parts.run
        self._local = Local(parts.directory, parts.run)
        self._elsewhere = elsewhere
        self._opening = opening
        self._clock = clock
        self._began = clock()
        self._due = self._opened_at = 0.0
        self._side: Head | Branch | None = None
        self._link: Link | None = None
        self._listen: Listen | None = None
        """Where this branch connects, or has tried to."""
        self._problem = ""
        self._told_alone = False
        self._states: tuple[HostState, ...] = ()
        self._far: dict[int, Member] = {}
        self._written: tuple[Any, float] = ((), 0.0)
        self._has_news = False
        """Whether something has changed at a host that was not told."""
        self._told_at = -math.inf
        self._closed = False

    def hosts(self) -> tuple[HostState, ...]:
        """Return what is known of the other hosts."""
        here = set(self._local.members)
        return tuple(each for each in self._states if here.isdisjoint(each.ranks))

    def ask(self, host: str, command: wire.Command, timeout_s: float, then: Then) -> None:
        """Send a command to the observer of a host; `then` is called once, with its reply or None."""
        side = self._side
        if side is None or self._closed:
            then(None)
        else:
            side.asking.ask(host, command, timeout_s, then)

    @property
    def refused(self) -> int:
        """Messages of other hosts that could not be read, or cannot be true."""
        of_link = 0 if self._link is None else sum(self._link.refused.values())
        return of_link + self._elsewhere.refused + (0 if self._side is None else self._side.refused)

    @property
    def judges(self) -> bool:
        """Say whether this host judges the run: the head does, and who has no link to it."""
        if isinstance(self._side, Head) or not self._is_several():
            return True
        if isinstance(self._side, Branch) and (self._side.is_linked or self._side.was_linked):
            return not self._side.is_linked
        return self._clock() - self._began > FIRST_S

    @property
    def last_verdicts(self) -> tuple[wire.Verdict, ...] | None:
        """What the head has told to be wrong last, at a branch for which it judges; None where this host judges."""
        side = self._side
        return side.verdicts if isinstance(side, Branch) and (side.is_linked or side.is_over) else None

    @property
    def cause(self) -> str | None:
        """The first cause of the run's end as the head tells it, at a branch; for any thread."""
        side = self._side
        return side.cause if isinstance(side, Branch) else None

    @property
    def reserved(self) -> tuple[wire.Verdict, ...]:
        """At a branch, one that is over: the numbers up to its own are those of the head's verdicts."""
        if not isinstance(self._side, Branch):
            return ()
        return (wire.Verdict(_NUMBERS_OF_HEAD, "", "", 0, 0),)

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Return the sockets on which something may arrive."""
        return [] if self._link is None else self._link.sockets

    @property
    def pause_s(self) -> float | None:
        """Seconds until the next `turn` is due, if nothing arrives; None where there is no link."""
        if self._side is None or self._link is None:
            return None
        news_s = self._told_at + _SOON_S - self._clock() if self._has_news else None
        pauses = (self._side.asking.pause_s, news_s)
        return max(0.0, min([self._link.pause_s, *(pause for pause in pauses if pause is not None)]))

    def pass_up(self, asker: bytes, rank: int | None, command: wire.Command) -> bool:
        """Hand a question of an onlooker here to the head; return False where it is to be answered here."""
        return isinstance(self._side, Branch) and self._side.pass_up(asker, rank, command)

    def subscribe_up(self, new: set[bytes]) -> bool:
        """Hand the subscriptions of onlookers here to the head; return False where they are to be greeted here."""
        if not (isinstance(self._side, Branch) and self._side.is_linked):
            return False
        self._side.want(new)
        return True

    def look_at(self, ranks: frozenset[int]) -> None:
        """Have the records of these ranks of a large group at once."""
        if self._side is not None:
            self._side.look_at(ranks)

    def lose(self, rank: int) -> None:
        """Take note that the process of a rank on this host is gone."""
        if rank in self._local.members:
            self._local.gone.add(rank)
            self._announce()

    def turn(self) -> None:
        """Take in what other hosts have sent, and once a second do what is due."""
        if self._closed:
            return
        if self._link is not None:
            self._link.turn()
        if self._side is not None:
            self._side.turn()
            self._find_role()
        now = self._clock()
        if self._has_news and now >= self._told_at + _SOON_S:
            self._tell()
        if now < self._due or not self._is_several():
            return
        self._due = now + _EVERY_S
        self._each_second()

    def _is_several(self) -> bool:
        """Say whether the run has ranks on other hosts."""
        run, here = self._run, len(self._local.members)
        if run.nodes is not None and run.nodes > 1:
            return True
        if run.local_world is None and (run.launched or self._clock() - self._began < _ALL_COME_S):
            return False
        return ranks_here(run, here) < run.world

    def _each_second(self) -> None:
        if self._local.read():
            self._announce()
        if self._side is None or isinstance(self._side, Branch):
            self._take_side()
        elif 0 not in self._local.members and self._local.members:
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
        own, head = self._local.hello(), self._listen
        return own if head is None else msgspec.structs.replace(own, run=head.run, run_id=head.run_id)

    def _take_side(self) -> None:
        members = self._local.members
        if not members:
            return
        if 0 in members:
            if isinstance(self._side, Branch):
                self._leave()
            self._open(None)
        elif not (isinstance(self._side, Branch) and self._side.is_linked):
            try:
                listen = self._opening.find(self._parts.directory, self._run)
            except (Complaint, OSError, ValueError) as problem:
                self._complain(problem)
                return
            if listen is not None and listen != self._listen:
                self._leave()
                self._open(listen)

    def _open(self, listen: Listen | None) -> None:
        """Listen as the head, or connect to it."""
        parts, local = self._parts, self._local
        calls = Calls(self._arrived, self._changed, parts.say)
        try:
            if listen is None:
                self._link, told = self._opening.head(parts.directory, self._run, self._hello(), calls)
                self._side = Head(parts, local, self._elsewhere, self._link)
                hosts.write_listen(parts.directory.path, hosts.LISTEN, told)
            else:
                self._listen, self._opened_at = listen, self._clock()
                self._link = self._opening.branch(parts.context, listen, self._hello(), calls)
                self._side = Branch(parts, local, self._elsewhere, self._link)
        except (Complaint, OSError, ValueError, zmq.ZMQError) as problem:
            self._leave()
            self._complain(problem)
            return
        if self._problem:
            self._problem = ""
            self._note_why("")
        self._find_role()

    def _complain(self, problem: Exception) -> None:
        text = f"other hosts are not linked: {problem}"
        if text != self._problem:
            self._problem = text
            self._parts.say(text, "error")
            self._note_why(clean_line(str(problem), 200))

    def _note_why(self, why: str) -> None:
        """Note why there is no link, for all who read the run directory."""
        rendezvous = hosts.read_rendezvous(self._parts.directory.path)
        try:
            if rendezvous is not None and rendezvous.why != why:
                hosts.write_rendezvous(self._parts.directory.path, msgspec.structs.replace(rendezvous, why=why))
        except OSError as error:
            _log.error("record of the rendezvous: %s", error)

    def _arrived(self, peer: bytes, kind: bytes, frames: list[bytes]) -> None:
        if self._side is not None:
            self._side.arrived(peer, kind, frames)

    def _changed(self, peer: bytes) -> None:
        if self._side is not None:
            self._side.changed(peer)
            self._has_news = True

    def _find_role(self) -> None:
        side = self._side
        self.role = "head" if isinstance(side, Head) else "branch" if side is not None and side.is_linked else "alone"

    def _leave(self) -> None:
        """End the link."""
        side, self._side = self._side, None
        if isinstance(side, Head):
            with contextlib.suppress(OSError):
                (self._parts.directory.path / "hosts" / hosts.LISTEN).unlink()
        if side is not None:
            side.close()
        if self._link is not None:
            self._link.close()
        self._link, self._listen = None, None
        self._elsewhere.forget()
        self.role = "alone"

    def _tell(self) -> None:
        """Publish and write down what is known of the hosts and of the ranks there."""
        side, parts = self._side, self._parts
        self._has_news, self._told_at = False, self._clock()
        if side is None:
            return
        self._states = side.states()
        parts.know_hosts(self._states)
        self.publish()
        plain = [(each.host, each.state, each.ranks, each.gone, each.agent_version) for each in self._states]
        before, at = self._written
        now = self._clock()
        try:
            if plain != before or now - at > _NEWS_S:
                self._written = plain, now
                hosts.write_hosts(parts.directory.path, self._states)
            far = side.members()
            if far != self._far:
                hosts.write_far(parts.directory.path, FarRanks(tuple(far[rank] for rank in sorted(far))))
                self._far = far
        except OSError as error:
            _log.error("record of the hosts: %s", error)

    def publish(self) -> None:
        """Tell who looks on what is known of the hosts, where the head does not."""
        side = self._side
        if side is not None and (isinstance(side, Head) or not side.is_linked):
            self._parts.door.publish(wire.TOPIC_HOSTS, wire.encode(wire.Hosts(time.time_ns(), side.states())))

    def _tell_alone(self) -> None:
        """Say once that there is no link, where the head is known and does not answer."""
        side, local, parts = self._side, self._local, self._parts
        if self._told_alone or self._clock() - self._opened_at < FIRST_S:
            return
        if isinstance(side, Branch) and not side.was_linked and self._listen is not None:
            self._told_alone = True
            where = ", ".join(self._listen.addresses[:3])
            parts.say(
                f"{self._listen.host}, the host of rank 0, does not answer at {where}: "
                f"this is the view of {local.host} alone, {last_words.ranks(local.members)}",
                "warning",
            )

    def conclude(self) -> None:
        """Take note that the run is over: that the head leaves is no news then. May be called from any thread."""
        if isinstance(side := self._side, Branch):
            side.is_over = True

    def close(self) -> None:
        """Leave the other hosts, after what waits was sent."""
        self._closed = True
        self._leave()
