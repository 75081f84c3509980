"""What is offered in which state of a run."""

from __future__ import annotations

from typing import Any

import pytest

from ddptop.agent.wire.frames import ENDED, STATES
from ddptop.tui.control.actions import RULES, Offers

LIVE = {
    "running": {"pause", "checkpoint", "memory", "profile", "probe", "stop", "kill"},
    "stalled": {"pause", "freeze", "checkpoint", "memory", "profile", "probe", "stop", "kill"},
    "held": {"pause", "checkpoint", "memory", "profile", "probe", "stop", "kill"},
    "pausing": {"cancel", "freeze", "kill"},
    "paused": {"resume", "step", "checkpoint", "probe", "stop", "kill"},
    "frozen": {"resume", "kill"},
    "of a newer agent": {"kill"},
}


@pytest.mark.parametrize("state", [*STATES, "of a newer agent"])
def test_each_state_offers_what_can_be_done_in_it(state: str) -> None:
    """A live run can always be killed, an ended one only be started again, and that if ddptop has launched it."""
    for launched in (False, True):
        offered = set(filter(Offers(state, launched).has, RULES))
        ended = {"restart"} if launched else set()
        assert offered == (ended if state in ENDED else LIVE.get(state, {"kill"})), launched


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("running", {"freeze", "join", "kill"}),
        ("stalled", {"freeze", "join", "kill"}),
        # What is stopped comes to no safe point.
        ("frozen", {"resume", "kill"}),
        ("starting", {"join", "kill"}),
        ("finished", set()),
    ],
)
def test_a_run_without_an_agent_offers_what_needs_none(state: str, expected: set[str]) -> None:
    """Nobody is in its ranks who could hold them, save or measure; its processes can be stopped and ended."""
    assert set(filter(Offers(state, launched=False, known_by="outside").has, RULES)) == expected


@pytest.mark.parametrize("state", STATES)
def test_what_waits_for_ranks_can_be_cancelled_or_replaced_by_a_freeze(state: str) -> None:
    """Whatever the ranks do meanwhile; once the run is over there is nothing to cancel."""
    for known_by in ("agent", "outside"):
        offered = set(filter(Offers(state, launched=False, waiting=True, known_by=known_by).has, RULES))
        assert offered == (set() if state in ENDED else {"cancel", "freeze", "kill"}), known_by


@pytest.mark.parametrize("state", STATES)
def test_a_run_whose_ranks_have_all_ended_can_only_be_killed(state: str) -> None:
    """Nobody is left to pause, to save or to stop, until the run is over."""
    offered = set(filter(Offers(state, launched=True, all_ended=True).has, RULES))
    assert offered == ({"restart"} if state in ENDED else {"kill"})


@pytest.mark.parametrize(
    ("action", "state", "known", "helps"),
    [
        ("profile", "paused", {}, "resume"),
        ("checkpoint", "frozen", {}, "resume"),
        ("memory", "pausing", {}, "cancel"),
        ("probe", "paused", {"waiting": True}, "cancel"),
        ("stop", "running", {"waiting": True}, "cancel"),
        ("step", "running", {}, ""),
        ("restart", "paused", {}, ""),
        ("pause", "running", {"all_ended": True}, ""),
        ("profile", "starting", {}, ""),
        ("profile", "finished", {"waiting": True}, ""),
        ("profile", "frozen", {"known_by": "outside"}, ""),
        ("freeze", "frozen", {"known_by": "outside"}, "resume"),
        ("pause", "running", {"known_by": "outside"}, "freeze"),
        ("join", "frozen", {"known_by": "outside"}, "resume"),
        ("profile", "running", {"known_by": "outside"}, ""),
        ("pause", "finished", {"known_by": "outside"}, ""),
    ],
)
def test_a_refused_action_names_the_one_that_helps(action: str, state: str, known: dict[str, Any], helps: str) -> None:
    """It is offered itself, and nothing is named where none helps."""
    offers = Offers(state, launched=True, **known)
    assert offers.remedy(action) == helps
    assert not helps or offers.has(helps)
