"""Imports point inward; shown in a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def loaded_by(statement: str) -> set[str]:
    """Return the top-level modules that a statement loads in a fresh interpreter."""
    code = f"{statement}\nimport sys, json; print(json.dumps([m.partition('.')[0] for m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        ("import ddptop.agent", {"torch", "textual", "zmq", "msgspec", "psutil"}),
        ("import ddptop.agent.wire", {"torch", "textual", "zmq"}),
        ("import ddptop.agent.__main__", {"torch", "textual"}),
        ("import ddptop.agent.observer.observer", {"torch", "textual"}),
        ("import ddptop.trainers", {"torch", "textual"}),
        ("import ddptop.tui.cli.main", {"torch", "textual", "zmq", "msgspec", "psutil"}),
        ("import ddptop.tui.link.live, ddptop.tui.control.launch.launch, ddptop.tui.cli.status", {"torch", "textual"}),
        # A look at a run has to be quick.
        ("import ddptop.tui.link.look, ddptop.tui.cli.status", {"numpy", "ddptop.agent.observer.observer"}),
        ("import ddptop.tui.app.app, ddptop.tui.cli.view", {"torch"}),
    ],
)
def test_a_room_loads_only_what_it_may(statement, forbidden):
    """The dashboard never loads torch, the agent never textual, and what must be light is."""
    assert not loaded_by(statement) & forbidden
