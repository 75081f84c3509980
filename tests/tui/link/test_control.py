"""What acts on a run: what it tells of that, and what is refused to those who may only look."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from support.screens.frames import StillSource, frame

from ddptop.agent.client.acting.control import RunControl
from ddptop.agent.record import recording
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run
from ddptop.tui.link.source import Control, ReadOnly, Refused, Source

ACTIONS = {name for name in vars(Control) if not name.startswith("_")}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "step": (1,),
    "diagnose": ("profile",),
    "kill": (0.0, None, print),
    "signal": (15, None),
    "victims": (None,),
}
KEYWORDS = {"stop": {"checkpoint": False}, "restart": {"resume": False}}


def ask(control: Control, name: str) -> object:
    """Have it do something, by name."""
    return getattr(control, name)(*ARGUMENTS.get(name, ()), **KEYWORDS.get(name, {}))


def test_a_run_on_several_hosts_is_not_frozen() -> None:
    """It is refused in one line that says what to do instead, and is told with the run."""
    run = Run("toy-1", "id", "toy.py", (), 4, "gloo", "cpu", 10**9, False, local_world=2, nodes=2)
    directory = rundir.create(run)
    try:
        with pytest.raises(Refused, match=r"several hosts.*nothing is frozen; `ddptop pause toy-1` holds all hosts"):
            RunControl(directory, run, "ada (shell)").freeze()
        assert not (directory.path / "frozen.json").exists()
        assert [each.action for each in recording.events_of(directory.database, directory.read())] == ["freeze"]
    finally:
        shutil.rmtree(directory.path)


def test_a_run_to_be_looked_at_can_only_be_looked_at() -> None:
    """Every action is refused, also what only tells of processes; what a source can do besides is not there."""
    still = StillSource(frame())
    source = ReadOnly(still)
    for name in sorted(ACTIONS):
        with pytest.raises(Refused, match="read-only"):
            ask(source.control, name)
    with pytest.raises(Refused, match="read-only"):
        source.open("another")
    assert still.asked == []
    reading = {"poll", "advance", "frame", "watch", "close", "inspector", "report", "diagnoses"}
    assert {name for name in dir(source) if not name.startswith("_")} == reading | {"open", "control"}
    assert reading | {"open", "control"} == {name for name in vars(Source) if not name.startswith("_")}
