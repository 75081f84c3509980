"""What `status --json` and `ps --json` print is JSON that any terminal can show."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.screens.frames import NOW, frame, hung_frame, rank_frame

from ddptop.agent.wire import Verdict
from ddptop.tui.cli.output import status

TEXT = st.text(
    st.characters(codec=None) | st.sampled_from('\x1b\x7f\u202e\ud800\udcff\U0001f1e6 \n\t"\\\\'), max_size=8
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=300)
@given(value=VALUES, indent=st.sampled_from([None, 2]))
def test_what_is_printed_reads_as_what_it_was(value: object, indent: int | None) -> None:
    """Whatever is in it, Python's own reader finds the same; and each line can be printed: no character moves a cursor.

    The lines are those of `json.dumps`, so that one object is one line where no indent is asked for.
    """
    text = status.encoded(value, indent)
    assert json.loads(text) == value
    assert text.replace("\n", "").isprintable()
    # A number may be spelled otherwise, as 1e22 for 1e+22.
    assert len(text.split("\n")) == len(json.dumps(value, indent=indent).split("\n"))


def test_a_hang_stands_in_the_line_of_its_run() -> None:
    """With what shows more of it, and without an age; a run that trains has no remark."""
    head, hung, well = status.table([hung_frame(), frame(run="well")], NOW)
    said = hung[head.index("PROGRAM") :].partition("rank 1 hangs")
    assert said[1]
    assert said[2].endswith("· train.py:31 main · ddptop stacks resnet-7f3a")
    assert "ddptop" not in well


@pytest.mark.parametrize("copy", [None, 4.5])
def test_copies_to_a_device_are_a_phase_where_there_is_one(copy: float | None) -> None:
    """The phases that are told add up to the step, whether it runs on a device or not."""
    phases = {"data": 1.0, "forward": 20.0, "other": 2.0} | ({} if copy is None else {"copy": copy})
    told = status.as_json(replace(frame(), ranks=(rank_frame(0, phases_ms=phases),)))["ranks"][0]["phases_ms"]
    assert {phase: spent for phase, spent in told.items() if spent is not None} == phases
    assert ("copy" in told) == (copy is not None)


@pytest.mark.usefixtures("utc")
def test_tokens_and_work_stand_by_their_names() -> None:
    """Of the group and of each rank; what is not known is null."""
    known = {"samples_per_s": 1.0, "tokens_per_s": 2.0, "flops_per_s": 3.0, "mfu": 0.4}
    told = status.as_json(replace(frame(), **known, ranks=(replace(rank_frame(0), **known, flops=5.0),)))
    assert {name: told[name] for name in known} == known
    assert {name: told["ranks"][0][name] for name in (*known, "flops")} == {**known, "flops": 5.0}
    unknown = status.as_json(frame())
    assert (unknown["mfu"], unknown["ranks"][0]["mfu"], unknown["ranks"][0]["flops"]) == (None, None, None)


def test_the_cause_of_growing_memory_stands_in_its_verdict() -> None:
    """An empty one is null."""
    grows = Verdict(1, "memory", "grows", 0, rank=1, cause="train.py:9 made 3 more float32[4]")
    assert status.as_json(frame(verdicts=(grows,)))["verdict"]["cause"] == grows.cause
    assert status.as_json(frame(verdicts=(replace(grows, cause=""),)))["verdict"]["cause"] is None


def test_ps_says_when_a_run_began_and_why_it_ended() -> None:
    """In its line, with the day."""
    head, line = status.table([frame("failed")], NOW)
    assert head.split()[4:6] == ["BEGAN", "RAN"]
    assert "15 Jan 07:58" in line
    assert line.endswith("rank 2: ValueError: bad lr")
