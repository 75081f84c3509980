"""Carries out the decisions of a run in this rank.

A rank reads the next decision when a message announces one, ten times a second while its gate is
closed, and when a lease expires: that a hold lapses is a decision, too, so that no
rank goes on while another stays held.  Where decisions are made on another host, a rank only proposes that its hold
lapses, and stays held until it is decided: also while that host cannot be reached.
"""

from __future__ import annotations

from collections.abc import Callable

from ddptop.agent import wire
from ddptop.agent.rank.commands.gate import Gate
from ddptop.agent.rank.faults import Faults
from ddptop.agent.run.decisions import Decisions


class Follower:
    """Opens, moves and closes the gate by decisions."""

    def __init__(
        self, gate: Gate, decisions: Decisions, faults: Faults, made_elsewhere: Callable[[], bool] = lambda: False
    ) -> None:
        """Skip the decisions of before; `made_elsewhere` says whether decisions are made on another host."""
        self._made_elsewhere = made_elsewhere
        self._proposes = False
        """Decisions are made on another host, as far as was known when this rank was to be held."""
        self._gate = gate
        self._decisions = decisions
        self._faults = faults
        self._seen = decisions.newest()
        gate.expired = self._lapse

    def start_afresh(self) -> None:
        """Skip decisions of the time in which the gate was open: they concern an earlier hold."""
        with self._gate.lock:
            if self._gate.limit is None:
                self._proposes = self._made_elsewhere()
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
        decide = self._decisions.propose if self._proposes else self._decisions.decide
        try:
            decide(self._seen + 1, wire.encode(wire.Lapse(0, token)))
        except Exception as error:
            # The training thread calls this too.
            self._faults.note("letting a hold lapse", error)
        self._faults.guard(self.catch_up)()
        return self._proposes and self._gate.is_under(token)
