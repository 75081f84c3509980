"""The words of an event that somebody has asked for."""

from __future__ import annotations

import pytest

from ddptop.agent import wire
from ddptop.agent.control.events import sentence


@pytest.mark.parametrize(
    ("action", "outcome", "refused", "text"),
    [
        ("pause", "held at step 7 in 8 ms", False, "pause: held at step 7 in 8 ms · ada (dashboard, pts/0)"),
        ("stop", "stopped at step 7", False, "stopped at step 7 · ada (dashboard, pts/0)"),
        ("freeze", "frozen: 2 ranks got SIGSTOP", False, "frozen: 2 ranks got SIGSTOP · ada (dashboard, pts/0)"),
        ("checkpoint", "no function\nfor it", True, "checkpoint refused: no function for it · ada (dashboard, pts/0)"),
        ("stop", "stopped meanwhile", True, "stop refused: stopped meanwhile · ada (dashboard, pts/0)"),
    ],
)
def test_the_outcome_comes_first_and_the_actor_last(action: str, outcome: str, refused: bool, text: str) -> None:
    """Where a list cuts the line, what happened stays."""
    assert sentence(action, outcome, "ada (dashboard, pts/0)", refused=refused) == text


def test_a_long_outcome_leaves_room_for_the_actor() -> None:
    """The wire cuts a text at its end, and the actor is in it all the same."""
    text = sentence("checkpoint", "x" * 1000, "ada (dashboard, pts/0)", refused=True)
    event = wire.read_telemetry(wire.encode(wire.Event(5, text, None, "warning")))
    assert isinstance(event, wire.Event)
    assert event.text == text
    assert text.endswith("x… · ada (dashboard, pts/0)")
