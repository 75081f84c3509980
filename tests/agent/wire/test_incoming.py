"""What comes from outside, as structs: clean and bounded, and as it was where there is nothing to clean."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from support.bases import marked
from support.values.hostile import LONGEST, marks, structs, texts_in

from ddptop.agent import wire
from ddptop.agent.end import freezer
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Ended, Member, Process, RunDir
from ddptop.agent.text import Complaint
from ddptop.agent.wire.incoming import cleaned

TELEMETRY = (
    wire.Hello, wire.Beat, wire.Steps, wire.Summary, wire.Event, wire.Checksums,
)  # fmt: skip
COMMANDS = (
    wire.Hold, wire.Commit, wire.Keep, wire.Resume, wire.Act, wire.Cancel, wire.Kill, wire.Advance,
    wire.End, wire.Save, wire.History, wire.Look,
)  # fmt: skip
READERS = (
    *((kind, wire.read_telemetry) for kind in TELEMETRY),
    *((kind, wire.read_command) for kind in COMMANDS),
    *((kind, wire.read_answer) for kind in (wire.Steps, wire.Reply)),
    (wire.Extent, wire.read_history),
    (wire.Verdict, wire.read_verdict),
)
VERBATIM = {"program", "arguments", "cwd", "command", "environment", "marks", "pub", "cmd", "log"}
"""Fields of records that something is done with."""


@pytest.mark.parametrize(("kind", "read"), READERS, ids=lambda each: each.__name__)
def test_text_of_a_message_is_clean_and_bounded(kind, read):
    """Whatever a peer sends as text, no reader gives out anything that a terminal would act on."""

    @settings(deadline=None, max_examples=25)
    @given(structs(kind))
    def check(message):
        for text in texts_in(read(wire.encode(message))):
            assert not marks(text)
            assert "\n" not in text
            assert len(text) <= LONGEST

    check()


@pytest.mark.parametrize("kind", [rundir.Run, rundir.Member, freezer.Frozen], ids=lambda kind: kind.__name__)
def test_text_of_a_record_is_clean_but_for_what_something_is_done_with(kind):
    """A record's words are clean; its paths and arguments are as they were written."""

    @settings(deadline=None, max_examples=25)
    @given(structs(kind))
    def check(record):
        read = cleaned(record)
        for name in record.__struct_fields__:
            if name in VERBATIM:
                assert getattr(read, name) == getattr(record, name)
            else:
                assert not any(map(marks, texts_in(getattr(read, name))))

    check()


def test_records_are_clean_when_they_are_read(tmp_path: Path) -> None:
    """Run, members and how a rank ended come clean out of the run directory, a traceback in its lines."""
    tmp_path.chmod(0o700)
    directory = RunDir(marked(tmp_path))
    (tmp_path / "ranks").mkdir()
    run = rundir.Run(
        "r", "id", "a b\u202e.py", ("\x1b[31m",), 1, "gl\x1b[31moo", "c\u202epu", 1, True, cause="x\ny\x07"
    )
    directory.write(run)
    ended = Ended(1, 1, "ValueError: \x1b[31mred", "first\n\x1b[2Jsecond", "ada\x9b2J")
    directory.write_member(Member(0, 0, 1, Process(1, 1.0), "ho\u202est", 0, "ipc://p", "ipc://c", None, ended))
    found, member = directory.read(), directory.members()[0]
    assert (found.backend, found.device, found.cause) == ("gloo", "cpu", "x y")
    assert (found.program, found.arguments) == (run.program, run.arguments)
    assert member.host == "host"
    assert member.ended == Ended(1, 1, "ValueError: red", "first\nsecond", "ada")


def test_clean_structs_are_not_made_anew() -> None:
    """Most messages have nothing to clean, and are given on as they are."""
    beat = wire.Beat(0, 1, "running", "forward", 1, None, 1, device="cpu", coordinates={"data": 1})
    assert cleaned(beat) is beat
    steps = wire.Steps(0, (wire.Step(1, 1, 1, 1, 1, 1, 1, 1, None, 1, metrics={"a": 1.0}),))
    assert wire.read_telemetry(wire.encode(steps)) == steps


@pytest.mark.parametrize(
    "message",
    [
        wire.Event(-1, ""), wire.Event(2**63, ""), wire.Event(1, "", rank=-1), wire.Beat(2**40, 1, "", "", 1, None, 1),
        wire.Beat(0, 1, "", "", -1, None, 1), wire.Beat(0, 1, "", "", 1, 2**63, 1),
        wire.Summary(0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, None, 1, samples=float("inf")),
        wire.Summary(0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, None, 1, samples=float("nan")),
        wire.Beat(0, 1, "", "", 1, None, 1, cpu_percent=float("nan")), wire.Event(2**63, "late"),
    ],
)  # fmt: skip
def test_a_number_beyond_its_range_is_no_message(message) -> None:
    """A moment after the year 2262, a rank below zero, an infinite count: refused whole, not passed on."""
    with pytest.raises(wire.Unreadable):
        wire.read_telemetry(wire.encode(message))


def test_a_complaint_is_one_clean_line() -> None:
    """What is refused, and why, can be printed whatever it repeats."""
    assert str(Complaint("run 'x\x1b[31m\u202e\nname': no such run")) == "run 'x name': no such run"
    assert issubclass(rundir.RunDirError, Complaint)
    with pytest.raises(rundir.RunDirError) as caught:
        rundir.check_name("\x1b]0;owned\x07\u202eevil")
    assert not marks(str(caught.value))
    assert msgspec.json.encode(str(caught.value))
