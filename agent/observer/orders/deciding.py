"""Decisions that a process on another host, or a controller on this one, asks this observer for.

The head makes them, exclusively, in its run directory.  A branch passes on what is asked for at its door, and what its
ranks have proposed in files; while it has no link, nothing is decided, and ranks that are held stay so.
"""

from __future__ import annotations

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
            if len(command.content) > LARGEST or not isinstance(wire.read_command(command.content), _KINDS):
                return "that is no decision"
        except wire.Unreadable:
            return "that is no decision"
        try:
            # After the newest one and no later: ranks read decisions one by one.
            made = command.serial == self._decisions.newest() + 1
            made = made and self._decisions.decide(command.serial, command.content)
        except OSError as error:
            return f"{self._directory.path}: {error.strerror}; nothing can be decided there"
        self._reply(sender, wire.Reply(command.id, made, DECIDED if made else DECIDED_ALREADY))
        return None

    def _pass_on(self, sender: bytes, command: wire.Decide) -> None:
        def take(reply: wire.Reply | None) -> None:
            done, text = (False, _CUT_OFF) if reply is None else (reply.done, reply.text)
            self._reply(sender, wire.Reply(command.id, done, text))

        self._hosts.ask(far.HEAD, command, _ANSWER_S, take)

    def turn(self) -> None:
        """Pass on what the ranks of this host have proposed; to be called from time to time."""
        if self._hosts.role != "branch":
            self._asked_at.clear()
            return
        now, newest = self._clock(), self._decisions.newest()
        proposals = self._decisions.proposals()
        for serial, content in proposals.items():
            if serial <= newest:
                self._decisions.withdraw(serial)
            elif now - self._asked_at.get(serial, -_AGAIN_S) >= _AGAIN_S:
                self._asked_at[serial] = now
                self._hosts.ask(far.HEAD, wire.Decide(0, serial, content), _ANSWER_S, self._taker(serial))
        self._asked_at = {serial: at for serial, at in self._asked_at.items() if serial in proposals}

    def _taker(self, serial: int) -> far.Then:
        def take(reply: wire.Reply | None) -> None:
            # Made or not: the copy of what was decided has come before this answer.
            if reply is not None:
                self._decisions.withdraw(serial)

        return take
