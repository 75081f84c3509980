"""`ddptop events`: what happened in a run, with its verdicts as intervals."""

from __future__ import annotations

import json
import math
import sys
import time

import msgspec
import pytest

from ddptop.agent import wire
from ddptop.agent.observer.model.run_model import RunModel
from ddptop.agent.record import recording
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run, RunDir
from ddptop.tui.cli.main import main
from ddptop.tui.cli.output import status

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

DAY = 1_800_000_000 * 10**9
MIN = 60 * 10**9


def recorded(name: str, state: str, ended_at_ns: int | None) -> None:
    """Make a run in which a rank was slow for a time, and the data are slow since."""
    run = Run(name, name, "toy.py", (), 2, "gloo", "cpu", DAY, True, state=state, ended_at_ns=ended_at_ns)
    verdicts = (
        wire.Verdict(1, "slow_rank", "rank 1 holds the group back", DAY + MIN, DAY + 13 * MIN, 1, "data", 5.0, 0.25),
        wire.Verdict(2, "input_bound", "all ranks wait for data", DAY + 14 * MIN, cost_ms=7.0, share=0.1, phase="data"),
    )
    # The first was told when it had lasted for a while, after something else had happened.
    verdicts = msgspec.structs.replace(verdicts[0], said_at_ns=DAY + 6 * MIN), verdicts[1]
    connection = recording.open_file(rundir.create(run).database)
    with connection:
        for at, text in ((DAY, "torchrun started"), (DAY + 5 * MIN, "checkpoint")):
            event = wire.Event(at, text)
            connection.execute(*recording.row(event, wire.encode(event)))
        for verdict in verdicts:
            for row in recording.verdict_rows(verdict):
                connection.execute(*row)
    connection.close()


def events(monkeypatch: Patch, *arguments: str) -> None:
    """Run the verb in this process."""
    monkeypatch.setattr(sys, "argv", ["ddptop", "events", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0


@pytest.mark.parametrize("verb", ["events", "report", "status"])
@pytest.mark.parametrize("odd", ["folder", "link", "noise"])
def test_a_recording_that_cannot_be_read_is_said(capsys: Captured, monkeypatch: Patch, odd: str, verb: str) -> None:
    """In one line, with the file; the frame that a dashboard shows has it among its events."""
    recorded("odd", "finished", DAY + 20 * MIN)
    file = rundir.find("odd").database
    moved = file.rename(file.with_name("elsewhere"))
    match odd:
        case "folder":
            file.mkdir()
        case "link":
            file.symlink_to(moved)
        case _:
            file.write_bytes(b"no database at all" * 1000)
    monkeypatch.setattr(sys, "argv", ["ddptop", verb, "odd"])
    with pytest.raises(SystemExit):
        main()
    printed = "".join(capsys.readouterr()).splitlines()
    assert len([line for line in printed if f"the recording cannot be read ({file}" in line]) == 1
    model = RunModel(RunDir(file.parent), rundir.find("odd").read())
    model.recall(math.inf)
    assert [line.text for line in model.store.changes.events if "the recording cannot be read" in line.text]


def clock(at_ns: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_ns / 1e9))


def test_a_verdict_is_one_line_at_the_time_at_which_it_was_told(capsys: Captured, monkeypatch: Patch) -> None:
    """In the order in which things were said, with its beginning and how long it lasted; one without an end goes on."""
    recorded("story", "running", None)
    events(monkeypatch, "story")
    lines = [line[11:] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        f"{clock(DAY)}   torchrun started",
        f"{clock(DAY + 5 * MIN)}   checkpoint",
        f"{clock(DAY + 6 * MIN)} ! rank 1 holds the group back "
        f"(since {clock(DAY + MIN)}, for 12 min, until {clock(DAY + 13 * MIN)})",
        f"{clock(DAY + 14 * MIN)} ! all ranks wait for data (since {clock(DAY + 14 * MIN)}, goes on)",
    ]


def test_nothing_goes_on_in_a_run_that_has_ended(capsys: Captured, monkeypatch: Patch) -> None:
    """A verdict whose end nobody recorded ended with the run, on another day if need be."""
    end = DAY + 2000 * MIN
    recorded("ended", "lost", end)
    events(monkeypatch, "ended")
    (told,) = (line for line in capsys.readouterr().out.splitlines() if "wait for data" in line)
    date = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(end / 1e9))
    assert told.endswith(f"all ranks wait for data (since {clock(DAY + 14 * MIN)}, for 33.1 h, until {date})")


def test_a_verdict_has_the_fields_of_an_event_and_its_own(capsys: Captured, monkeypatch: Patch) -> None:
    """Events stay as they were; the object of a verdict says besides until when, of what kind and at what cost."""
    recorded("fields", "running", None)
    events(monkeypatch, "fields", "--json")
    event, _, slow, data = json.loads(capsys.readouterr().out)
    own = {"since", "until", "kind", "phase", "cost_ms", "share", "hang", "host", "cause"}
    assert set(slow) == set(event) | own | {"line", "line_ms", "line_share"}
    assert (slow["at"], slow["since"], slow["until"]) == (DAY / 1e9 + 360, DAY / 1e9 + 60, DAY / 1e9 + 780)
    assert (slow["rank"], slow["level"]) == (1, "warning")
    assert (slow["kind"], slow["phase"], slow["cost_ms"], slow["share"]) == ("slow_rank", "data", 5.0, 0.25)
    assert (data["until"], data["rank"], data["text"]) == (None, None, "all ranks wait for data")


def test_the_rank_of_an_event_is_named_once() -> None:
    """In front of the line, unless that begins with it, as the subject or as the owner of it."""
    for text, line in (
        ("rank 2 is up", "rank 2 is up"),
        ("rank 2's parameters differ", "rank 2's parameters differ"),
        ("rank 21 is up", "rank 2: rank 21 is up"),
        ("loss is nan", "rank 2: loss is nan"),
    ):
        event = wire.Event(DAY, text, 2)
        assert status.event_line(event).endswith(f"   {line}")
