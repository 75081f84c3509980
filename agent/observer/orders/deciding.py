"""Decisions that a process on another host, or a controller on this one, asks this observer for.

The head makes them, exclusively, in its run directory.  A branch passes on what is asked for at its door, and what its
ranks have proposed in files; while it has no link, nothing is decided, and ranks that are held stay so.  That a hold
lapses is decided only while all hosts are heard: none goes on alone, into a collective that waits for the others.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

from ddptop.agent import wire
from ddptop.agent.control.caller import DECIDED_ALREADY
from ddptop.agent.observer.orders import far
from ddptop.agent.observer.orders.far import FarHosts
from ddptop.agent.run.decisions import LARGEST, Decisions, are_made_elsewhere
from ddptop.agent.run.rundir import RunDir

DECIDED: Final = "decided"
_ANSWER_S: Final = 2.0
_AGAIN_S: Final = 1.0
"""Seconds between two attempts to have a proposal decided."""
_CUT_OFF: Final = (
    "the host of rank 0, which decides for all hosts, cannot be reached; nothing was decided, and ranks that are held "
    "stay so"
)
_CUT_OFF_OTHERS: Final = "another host cannot be reached, and no rank is let go before all are"
_NONE: Final = "that is no decision"
_KINDS: Final = (wire.Keep, wire.Advance, wire.Resume, wire.End, wire.Lapse)

Reply = Callable[[bytes, wire.Reply], None]


class Deciding:
    """Answers `wire.Decide`, and passes on the proposals of ranks."""

    def __init__(
        self, directory: RunDir, hosts: FarHosts, reply: Reply, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare; `reply` answers a sender, on any thread."""
        self._directory = directory
        self._decisions = Decisions(directory.path)
        self._hosts = hosts
        self._reply = reply
        self._clock = clock
        self._asked_at: dict[int, float] = {}
        """By proposal, when the head was asked last."""

    def answer(self, sender: bytes, command: wire.Decide) -> str | None:
        """Make a decision, or have it made, and answer; return the reason for a refusal instead."""
        from_afar = far.is_from_afar(sender)
        if self._hosts.role == "branch" and not from_afar:
            self._pass_on(sender, command)
            return None
        if self._hosts.role == "branch" or are_made_elsewhere(self._directory):
            return _CUT_OFF
        try:
            decision = wire.read_command(command.content)
        except wire.Unreadable:
            return _NONE
        if len(command.content) > LARGEST or not isinstance(decision, _KINDS):
            return _NONE
        if from_afar and isinstance(decision, wire.Lapse) and not self._can_tell_all():
            return _CUT_OFF_OTHERS
        try:
            # After the newest one and no later: ranks read decisions one by one.
            made = command.serial == self._decisions.newest() + 1
            made = made and self._decisions.decide(command.serial, command.content)
        except OSError as error:
            return self._decisions.refusal(error)
        self._reply(sender, wire.Reply(command.id, made, DECIDED if made else DECIDED_ALREADY))
        return None

    def _pass_on(self, sender: bytes, command: wire.Decide) -> None:
        def take(reply: wire.Reply | None) -> None:
            done, text = (False, _CUT_OFF) if reply is None else (reply.done, reply.text)
            self._reply(sender, wire.Reply(command.id, done, text))

        self._hosts.ask(far.HEAD, command, _ANSWER_S, take)

    def turn(self) -> None:
        """Decide, or pass on, what the ranks of this host have proposed; to be called from time to time."""
        proposals = self._decisions.proposals()
        self._asked_at = {serial: at for serial, at in self._asked_at.items() if serial in proposals}
        if not proposals:
            return
        newest = self._decisions.newest()
        for serial, content in proposals.items():
            if serial <= newest:
                self._decisions.withdraw(serial)
            elif self._hosts.role == "branch":
                self._propose(serial, content)
            elif serial == newest + 1 and self._can_tell_all():
                self._lapse(serial, content)

    def _can_tell_all(self) -> bool:
        """Say whether decisions are made here, and each host that is not gone hears of them."""
        heard = all(each.state in (far.LINKED, far.GONE) for each in self._hosts.hosts())
        return heard and not are_made_elsewhere(self._directory)

    def _lapse(self, serial: int, content: bytes) -> None:
        # A proposal is a file that any program of the user can write; only a lapse is proposed so.
        with contextlib.suppress(OSError, wire.Unreadable):
            if isinstance(wire.read_command(content), wire.Lapse):
                self._decisions.decide(serial, content)
        self._decisions.withdraw(serial)

    def _propose(self, serial: int, content: bytes) -> None:
        now = self._clock()
        if now - self._asked_at.get(serial, -_AGAIN_S) >= _AGAIN_S:
            self._asked_at[serial] = now
            self._hosts.ask(far.HEAD, wire.Decide(0, serial, content), _ANSWER_S, self._taker(serial))

    def _taker(self, serial: int) -> far.Then:
        def take(reply: wire.Reply | None) -> None:
            # Made or not: the copy of what was decided has come before this answer.
            if reply is not None:
                self._decisions.withdraw(serial)

        return take
