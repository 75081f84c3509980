"""What acts on a run: what it tells of that, and what is refused to those who may only look."""

from __future__ import annotations

from typing import Any

import pytest
from support.screens.frames import StillSource, frame

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
    reading = {"poll", "frame", "watch", "close", "inspector", "report", "diagnoses"}
    assert {name for name in dir(source) if not name.startswith("_")} == reading | {"open", "control"}
    assert reading | {"open", "control"} == {name for name in vars(Source) if not name.startswith("_")}
