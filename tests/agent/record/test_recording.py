"""The events of a run as they are read."""

from __future__ import annotations

import msgspec
import pytest

from ddptop.agent import wire
from ddptop.agent.record import recording
from ddptop.agent.run.records import Run

EVENT = wire.Event(5, "pause: held at step 7 · somebody", None, "info", "pause", "somebody")
RUN = Run("full", "id", "toy.py", (), 2, "gloo", "cpu", 1, True, state="running")


@pytest.mark.parametrize(
    ("state", "cause", "text"), [("killed", "killed by ada (pts/0)", "run killed by ada (pts/0)"),
                                 ("failed", "rank 1: MemoryError", "run failed: rank 1: MemoryError")],
)  # fmt: skip
def test_the_end_of_a_run_is_among_its_events_by_its_record(state: str, cause: str, text: str) -> None:
    """Once, also where an observer had room for it; as long as the run goes on there is none."""
    assert list(recording.with_end([EVENT], RUN)) == [EVENT]
    over = msgspec.structs.replace(RUN, state=state, cause=cause, ended_at_ns=7)
    *before, end = recording.with_end([EVENT], over)
    assert (before, end.at_ns, end.text) == ([EVENT], 7, text)
    assert list(recording.with_end([EVENT, end], over)) == [EVENT, end]
