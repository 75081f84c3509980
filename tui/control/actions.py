"""What can be done with a run: the one table of which action is offered in which state.

The keys of a run and those of the list of runs are checked against it, and the line of keys and the palette show
what these checks let through. Whether an action succeeds is decided where it is done.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ddptop.agent.client.diagnosis.kinds import DIAGNOSES
from ddptop.agent.client.frame import Frame
from ddptop.agent.wire.frames import ENDED, OUTSIDE
from ddptop.agent.wire.vocabulary.refusals import REGISTRATION
from ddptop.trainers import CATALOGUE


@dataclass(frozen=True, slots=True)
class Rule:
    """When an action is offered. A dashboard that only looks on offers none of them."""

    states: frozenset[str] | None
    """States of the run; None: all but the ended ones, also those that only a newer agent says."""
    launched: bool = False
    """True where ddptop must have launched the run."""
    joined: bool = False
    """True where the agent must have joined ranks that ran already."""
    outside: frozenset[str] | None = frozenset()
    """In the place of `states`, of a run that goes on without an agent in its ranks."""


_MOVING: Final = frozenset({"running", "stalled", "held"})
_HELD: Final = frozenset({"paused"})

RULES: Final[Mapping[str, Rule]] = {
    "pause": Rule(_MOVING),
    "cancel": Rule(frozenset({"pausing"})),
    "resume": Rule(_HELD | {"frozen"}, outside=frozenset({"frozen"})),
    "freeze": Rule(frozenset({"stalled", "pausing"}), outside=_MOVING),
    "step": Rule(_HELD),
    "checkpoint": Rule(_MOVING | _HELD),
    # Where there are steps to make it over, or ranks that can be held.
    **{name: Rule(_MOVING if each.steps is not None else _MOVING | _HELD) for name, each in DIAGNOSES.items()},
    "stop": Rule(_MOVING | _HELD),
    "join": Rule(frozenset(), outside=_MOVING | {"starting"}),
    "leave": Rule(_MOVING, joined=True),
    "kill": Rule(None, outside=None),
    "restart": Rule(ENDED, launched=True),
}
"""By the name of an action, as keys and messages have it."""

WAITING: Final = frozenset({"cancel", "freeze", "kill"})
"""What is offered while an action waits for ranks, whoever has asked for it."""


class Offers(NamedTuple):
    """What is known of a run that decides which actions are offered for it."""

    state: str
    launched: bool
    """True where ddptop has launched the run."""
    waiting: bool = False
    """True while an action waits for ranks to come to a step, whoever has asked for it."""
    all_ended: bool = False
    """True where every rank has ended already, whatever the state of the run."""
    known_by: str = "agent"
    """What its numbers come from."""

    @classmethod
    def of(cls, frame: Frame) -> Offers:
        """Return them for the run that is shown."""
        return cls(frame.state, frame.launched, bool(frame.waiting), frame.all_ended, frame.known_by)

    def has(self, action: str) -> bool:
        """Say whether an action of `RULES` is offered."""
        rule, goes_on = RULES[action], self.state not in ENDED
        if self.all_ended and goes_on:
            return action == "kill"
        if self.waiting and goes_on:
            return action in WAITING
        states = rule.outside if self.known_by == OUTSIDE and goes_on else rule.states
        fits = goes_on if states is None else self.state in states
        return fits and (self.launched or not rule.launched) and (self.known_by == "joined" or not rule.joined)

    def why_not(self, action: str) -> str:
        """Say in a few words why an action is not offered."""
        if self.state in ENDED:
            return "the run was not launched by ddptop" if action == "restart" else "the run has ended"
        if self.all_ended:
            return "all ranks have ended"
        if action == "restart":
            return "the run has not ended"
        if self.waiting or self.state in ("pausing", "killing"):
            return "another action is under way"
        if self.known_by == OUTSIDE and RULES[action].outside == frozenset():
            return "nobody prepared this job, so no agent in its ranks can do that"
        if action == "join" and self.known_by == "agent":
            return "its ranks were started with the agent"
        if action == "step":
            return "the run is not paused"
        if action == "freeze" and self.state == "running":
            return "a running run can be paused"
        return f"the run is {self.state}"

    def remedy(self, action: str) -> str:
        """Return the action after which one that is not offered would be; empty where there is none."""
        if not self._replace(state="running", waiting=False, all_ended=False).has(action):
            return "freeze" if action == "pause" and self.has("freeze") else ""
        return next((other for other in ("cancel", "resume") if self.has(other)), "")


def to_save(program: str) -> list[str]:
    """Return what lets a run of this program save checkpoints: a sentence, then the lines of Python that it names."""
    if program in CATALOGUE:
        return [f"restart it with: ddptop launch {shlex.quote(program)} -- --checkpoint-dir DIR"]
    return ["these lines in the script register one:", *REGISTRATION]
