"""A run that has ended, or that nobody observes, as whoever opens it sees it: by its record, without a process."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.locking import held
from support.values.inspections import inspection
from support.values.recordings import record_frames
from support.values.watches import watched

from ddptop.agent import wire
from ddptop.agent.client import look, watch
from ddptop.agent.client import runs as client_runs
from ddptop.agent.client.frame import Frame
from ddptop.agent.client.watch import Watch
from ddptop.agent.record import recording
from ddptop.agent.record.history.stored import Writer
from ddptop.agent.run import rundir
from ddptop.agent.run.identity import Process
from ddptop.agent.run.rundir import Ended, Member, Run, RunDir
from ddptop.agent.text import MASK
from ddptop.agent.wire.frames import EventLine, RankFrame, RunFrame
from ddptop.agent.wire.vocabulary.refusals import Refused

NOBODY = Process(2**22 + 1, 1.0)
now = [0.0]
"""The clock of what is opened here."""
AN_HOUR_AGO = time.time_ns() - 3600 * 10**9


def run_of(name: str, state: str, world: int = 2, **more: Any) -> RunDir:
    """Make a run that was launched an hour ago, and of which no process lives."""
    run = Run(name, name, "toy.py", (), world, "gloo", "cpu", AN_HOUR_AGO, True, state=state)
    return rundir.create(replace(run, observer=NOBODY, torchrun=NOBODY, **more))


def frames_of(directory: RunDir, state: str, at: float, *ranks: RankFrame) -> None:
    """Record the frames of a run, as its observer does."""
    run = directory.read()
    event = EventLine(at - 5, "checkpoint", None, "info")
    frame = RunFrame(run=run.run, at=at, state=state, program=run.program, world=run.world, step=7, eta_s=9.0)
    record_frames(directory, replace(frame, events=(event,), run_id=run.run_id), ranks)


def rank(number: int, state: str, step: int, **more: Any) -> RankFrame:
    return replace(RankFrame(rank=number, state=state, activity="forward"), step=step, loss=0.25, **more)


@contextmanager
def opened(directory: RunDir, **how: Any) -> Iterator[Watch]:
    """Open a run and take in what is there at once."""
    with watched(directory, clock=lambda: now[0], **how) as link:
        now[0] += 10
        link.poll()
        yield link


def seen(directory: RunDir, **how: Any) -> Frame:
    """Return a run as it is seen at the first look."""
    with opened(directory, **how) as link:
        assert link.complete
        return link.frame()


def test_an_ended_run_is_what_its_observer_recorded_last() -> None:
    """As it was then, with the end by the record of the run, which may have another name by now."""
    directory = run_of("over", "failed", exit_code=3, ended_at_ns=9 * 10**9, cause="rank 1: gone", cause_rank=1)
    log = str(directory.rank_log(1))
    last = rank(0, "killed", 8), rank(1, "failed", 7, log=log, ended="exit code 3")
    frames_of(directory, "failed", 8.5, *last)
    frame = seen(directory)
    assert (frame.state, frame.exit_code, frame.ended_at, frame.cause) == ("failed", 3, 9.0, "rank 1: gone")
    assert (frame.at, frame.step, frame.supervised, frame.unobserved_s) == (8.5, 7, False, None)
    assert tuple(frame.ranks) == last
    assert [event.text for event in frame.events] == ["checkpoint"]
    rundir.set_aside(directory, "over.2")
    moved = seen(rundir.find("over.2"))
    assert moved.run == "over.2"
    assert moved.ranks[1].log == log.replace("/over/", "/over.2/")


def test_a_run_that_was_ended_with_its_observer_is_what_was_recorded_before() -> None:
    """As by a reboot: steps and losses of then, the ends by the records of the ranks, and the end in its events."""
    directory = run_of("dead", "running")
    for number, ended in enumerate((Ended(time.time_ns(), 0, step=12), None)):
        directory.write_member(Member(number, number, 2, NOBODY, "host", 0, "", "", None, ended))
    frames_of(directory, "running", time.time() - 60, rank(0, "running", 9, stands=True), rank(1, "running", 9))
    frame = seen(directory)
    assert (frame.state, frame.step, frame.eta_s, frame.action) == ("lost", 9, None, "")
    assert [(each.state, each.step, each.loss, each.ended) for each in frame.ranks] == [
        ("finished", 12, 0.25, "exit code 0"),
        ("lost", 9, 0.25, "its process is gone"),
    ]
    assert not frame.ranks[0].stands
    assert frame.events[0].text == "checkpoint"
    assert frame.events[-1].text.startswith("run lost: ")
    assert directory.read().state == "lost"


def test_who_may_only_look_is_told_the_same_and_writes_nothing() -> None:
    """Of a run of another user the records of its ranks alone are read."""
    directory = run_of("theirs", "running")
    directory.write_member(Member(0, 0, 2, NOBODY, "host", 0, "", "", None, Ended(1, 1, error="ValueError: x")))
    frames_of(directory, "running", 8.5, rank(0, "running", 9), rank(1, "running", 9))
    before = directory.database.read_bytes(), (directory.path / "run.json").read_bytes()
    frame = seen(directory, onlooker=True)
    assert (frame.state, frame.step) == ("failed", None)
    assert frame.ranks[0].ended == "exit code 1: ValueError: x"
    assert (directory.database.read_bytes(), (directory.path / "run.json").read_bytes()) == before


def test_a_program_has_all_that_is_kept_of_a_run() -> None:
    """By its name: frames until it is over, its events, its report, its diagnoses and the stacks that there are not."""
    directory = run_of("kept", "failed", exit_code=3, ended_at_ns=9 * 10**9, cause="rank 1: gone")
    frames_of(directory, "failed", 8.5, rank(0, "killed", 8), rank(1, "failed", 7))
    with watch.open("kep") as run:
        (frame,) = look.follow(run, every_s=1.0)
        assert (frame.state, frame.step) == ("failed", 7)
        assert [each.text for each in run.events() if isinstance(each, wire.Event)] == ["run failed: rank 1: gone"]
        assert run.report().cause == "rank 1: gone"
        assert (run.diagnoses("probe"), run.processes()) == ([], [])
        with pytest.raises(Refused, match=r"is over \(failed\)"):
            run.stacks()


@pytest.mark.parametrize("protocol", [wire.PROTOCOL, wire.PROTOCOL - 1])
def test_an_older_recording_says_so(protocol: int) -> None:
    """One line among its events, beside its own; the end of the run is that of its record."""
    directory = run_of("older", "finished", exit_code=0, ended_at_ns=9 * 10**9)
    if protocol != wire.PROTOCOL:
        frames_of(directory, "finished", 8.5, rank(0, "finished", 9), rank(1, "finished", 9))
    with closing(recording.open_file(directory.database)) as connection, connection:
        event = wire.Event(7 * 10**9, "checkpoint")
        connection.execute(*recording.row(event, wire.encode(event)))
        connection.execute(f"PRAGMA user_version = {protocol}")
    frame = seen(directory)
    assert (frame.state, frame.exit_code, [each.step for each in frame.ranks]) == ("finished", 0, [None, None])
    *events, older = frame.events
    assert [event.text for event in events] == ["checkpoint", "run finished"]
    assert older.text.startswith("the recording is of an older ddptop")


def test_a_damaged_recording_gives_what_can_be_read() -> None:
    """A rank whose frame cannot be read is as its record says; a file that is none says so."""
    directory = run_of("damaged", "finished")
    frames_of(directory, "finished", 8.5, rank(0, "finished", 9), rank(1, "finished", 9))
    with closing(sqlite3.connect(directory.database)) as connection, connection:
        connection.execute("UPDATE frames SET payload = x'ff' WHERE rank = 0")
    assert [each.step for each in seen(directory).ranks] == [None, 9]
    directory.database.write_bytes(b"noise" * 1000)
    frame = seen(directory)
    assert frame.state == "finished"
    assert "the recording cannot be read" in frame.events[0].text


def test_a_recording_that_another_process_holds_is_read_once_it_is_let_go() -> None:
    """Until then the run is what its record says, at once."""
    directory = run_of("held", "finished")
    frames_of(directory, "finished", 8.5, rank(0, "finished", 9), rank(1, "finished", 9))
    with held(directory.database), opened(directory) as link:
        assert not link.complete
        assert (link.frame().state, link.frame().step) == ("finished", None)
    assert seen(directory).step == 7


def test_the_whole_course_of_an_ended_run_is_asked_of_its_file() -> None:
    """A plot has all its steps with the first look, and the newest are there whole soon after."""
    directory = run_of("course", "finished")
    with closing(recording.open_file(directory.database)) as connection, connection:
        history = Writer(connection, 2)
        for number in range(1, 601):
            step = wire.Step(number, number, number * 10**8, 10**8, 0, 10**8, 0, 0, 0, 0, float(number), 32)
            for each in range(2):
                message = wire.Steps(each, (step,))
                connection.execute(*recording.row(message, wire.encode(message)))
                history.rows.steps(each, [step], 0)
        history.settle()
        history.write()
    with opened(directory, looks_back=True) as link:
        assert link.history is not None
        by_step = link.history.by_step
        read = by_step.read(1, "loss")
        link.poll()
        assert by_step.complete
        assert read.count.sum() == 600
        assert np.all((read.low <= read.steps) & (read.high >= read.low))
        assert by_step.span(1) == (1, 600)
        assert link.history.steps.numbers((0, 1))[-1] == 600


def test_nothing_that_is_shown_has_a_secret_of_the_run() -> None:
    """Neither a frame nor an event, a verdict or the report, wherever it stands in them."""
    secret = "s3cr3t-value"
    directory = run_of(
        "over", "failed", ended_at_ns=9 * 10**9, cause=f"rank 1: ValueError: {secret}", cause_rank=1,
        environment={"API_KEY": secret},
    )  # fmt: skip
    hang = wire.Hang("not_entered", (1,), f"train.py:31 {secret}", waiting=f"all_reduce {secret}")
    verdict = wire.Verdict(1, "hang", f"rank 1 waits for {secret}", 8 * 10**9, rank=1, hang=hang, cause=secret)
    event = wire.Event(8 * 10**9, f"it says {secret}")
    frame = RunFrame(run="over", at=8.5, state="failed", program="toy.py", world=2, verdicts=(verdict,), note=secret)
    line = EventLine(8.0, event.text, None, "info")
    ranks = rank(0, "killed", 7, fault=secret), rank(1, "failed", 7, ended=f"exit code 1: {secret}", health=secret)
    record_frames(directory, replace(frame, events=(line,), run_id="over"), ranks)
    with closing(recording.open_file(directory.database)) as connection, connection:
        connection.execute(recording.INSERT_EVENT, (event.at_ns, wire.encode(event)))
        row = verdict.number, verdict.since_at_ns, None, wire.encode(verdict)
        connection.execute("INSERT INTO verdicts VALUES(?, ?, ?, ?)", row)
        connection.execute(*recording.inspection_rows((inspection(1),))[-1])
    run = client_runs.Run(directory)
    with opened(directory) as link:
        shown = link.frame(), run.happened(), run.report(), link.inspector.recorded(0.0)
        assert (shown[0].ranks[0].fault, shown[0].ranks[1].health) == (MASK, MASK)
        directory.update(run_id="another")
        now[0] += 10
        link.poll()
        assert secret not in repr(link.frame())
    assert secret not in repr(shown)
    assert f"rank 1 waits for {MASK}" in repr(shown[1])
    assert f"all_reduce {MASK}" in repr(shown[2])
    assert f"all_reduce {MASK}" in repr(shown[3])
    assert (shown[0].state, shown[0].cause) == ("failed", f"rank 1: ValueError: {MASK}")
