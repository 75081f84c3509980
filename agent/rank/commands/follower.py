"""Carries out the decisions of a run in this rank.

A rank reads the next decision when a message announces one, ten times a second while its gate is
closed, and when a lease expires: that a hold lapses is a decision, too, so that no
rank goes on while another stays held.  Of a run on several hosts, a rank only proposes that its hold lapses, and stays
held until the observer has decided it: not before all hosts can be told.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

from ddptop.agent import wire
from ddptop.agent.rank.commands.gate import Gate
from ddptop.agent.rank.faults import Faults
from ddptop.agent.run.decisions import Decisions

_ALONE_S: Final = 2.0
"""Seconds after which a rank on the host of rank 0 decides itself, where the run has no observer."""


class Deciders(Protocol):
    """Where decisions are made; see `agent.run.decisions.Place`."""

    def is_over_hosts(self) -> bool:
        """Say whether the run has other hosts."""
        ...

    def is_deserted(self) -> bool:
        """Say whether decisions are made on this host, and no observer lives that would."""
        ...


class Follower:
    """Opens, moves and closes the gate by decisions."""

    def __init__(self, gate: Gate, decisions: Decisions, faults: Faults, place: Deciders | None = None) -> None:
        """Skip the decisions of before; `place` says where decisions are made, None: on this host by anybody."""
        self._place = place
        self._proposes = False
        """The run is on several hosts, as far as was known when this rank was to be held."""
        self._proposed: tuple[str, float] = ("", 0.0)
        """The token of the lease whose end was proposed, and since when."""
        self._gate = gate
        self._decisions = decisions
        self._faults = faults
        self._seen = decisions.newest()
        gate.expired = self._lapse

    def start_afresh(self) -> None:
        """Skip decisions of the time in which the gate was open: they concern an earlier hold."""
        with self._gate.lock:
            if self._gate.limit is None:
                self._proposes = self._place is not None and self._place.is_over_hosts()
                self._seen = self._decisions.newest()

    def catch_up(self) -> None:
        """Carry out the decisions that this rank has not carried out."""
        with self._gate.lock:
            while (content := self._decisions.read(self._seen + 1)) is not None:
                self._seen += 1
                try:
                    self._follow(wire.read_command(content))
                except (wire.Unreadable, ValueError) as error:
                    self._faults.note("reading a decision", error)

    def _follow(self, decision: wire.Command) -> None:
        gate = self._gate
        match decision:
            case wire.Keep(_, token, step):
                gate.keep(token, step)
            case wire.Advance(_, step):
                gate.advance(step)
            case wire.Resume():
                gate.resume()
            case wire.End(_, who):
                gate.end(who)
            case wire.Lapse(_, token):
                gate.lapse(token)

    def _lapse(self, token: str) -> bool:
        """Decide, or propose, that the hold under this lease lapses; return whether that is still to be decided."""
        self._faults.guard(self.catch_up)()
        if not self._gate.is_under(token):
            return False
        try:
            waits = self._proposes and not self._is_left_alone(token)
            decide = self._decisions.propose if waits else self._decisions.decide
            decide(self._seen + 1, wire.encode(wire.Lapse(0, token)))
        except Exception as error:
            # The training thread calls this too.
            self._faults.note("letting a hold lapse", error)
        self._faults.guard(self.catch_up)()
        return self._proposes and self._gate.is_under(token)

    def _is_left_alone(self, token: str) -> bool:
        """Say whether nobody is there who would decide what was proposed some time ago."""
        if self._proposed[0] != token:
            self._proposed = token, time.monotonic()
        long_ago = time.monotonic() > self._proposed[1] + _ALONE_S
        return long_ago and self._place is not None and self._place.is_deserted()
