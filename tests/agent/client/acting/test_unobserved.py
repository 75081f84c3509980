"""What is left of a run without an observer is ended by whoever asks, and nothing else is said to be."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
from support.harness import WAIT, until

from ddptop.agent.client.acting import unobserved
from ddptop.agent.end import escalation, processes, survey
from ddptop.agent.run import rundir
from ddptop.agent.run.files.private import Claim, Hold
from ddptop.agent.run.identity import boot, namespace
from ddptop.agent.run.rundir import Member, Process, RunDir, identify
from ddptop.agent.wire.vocabulary.refusals import Refused
from ddptop.tui.cli.main import main

GONE = Process(2**22 + 1, 1.0)
"""No process: beyond the largest number that Linux gives."""

NewRun = Callable[..., RunDir]
Python = Callable[..., "subprocess.Popen[str]"]


def enlist(directory: RunDir, rank: int, process: Process | None) -> None:
    """Write the record of a rank."""
    directory.write_member(Member(rank, rank, 2, process or GONE, "host", 0, "", "", "its log"))


def kill(directory: RunDir) -> str | None:
    """Kill a run, at once."""
    return unobserved.kill(directory, "ada", 0.0, lambda line: None)


def test_a_kill_is_recorded_as_one(new_run: NewRun, python: Python) -> None:
    """By whoever concludes it; of a run that is over what is left is ended, and its end stays as it is."""
    directory = new_run(state="running", observer=GONE, torchrun=GONE)
    rank = python(WAIT, directory.read().run_id)
    enlist(directory, 0, identify(rank.pid))
    directory.rank_log(0).write_text("its last output")
    began = time.time_ns() - 10**8
    os.utime(directory.rank_log(0), (1, 1))
    assert kill(directory) == "1 rank ended, 0 left"
    rank.wait()
    run = directory.read()
    assert (run.state, run.cause, run.exit_code) == ("killed", "killed by ada", 128 + signal.SIGTERM)
    assert run.ended_at_ns is not None
    assert run.ended_at_ns >= began
    assert not (directory.path / "lock").exists()
    directory.update(state="failed", cause="as written")
    helper = python(WAIT, run.run_id)
    until(lambda: processes.find(run, {}), "it carries the marker")
    assert kill(directory) == "already failed: 1 helper ended, 0 left"
    helper.wait()
    assert (directory.read().state, directory.read().cause) == ("failed", "as written")


def test_where_an_observer_has_come_it_is_left_to_that(new_run: NewRun) -> None:
    """Who has the claim is at work."""
    directory = new_run(state="running", observer=GONE, torchrun=GONE)
    claim = Claim.acquire(directory.path)
    assert claim is not None
    with claim:
        assert kill(directory) is None
    assert directory.read().killed_by is None


def test_a_kill_with_survivors_does_not_call_the_run_killed(
    new_run: NewRun, python: Python, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says which process is left and what to do, and the record has no end; nor when only a helper is left."""
    directory = new_run(observer=GONE, torchrun=GONE)
    rank, helper = (python(WAIT, directory.read().run_id) for _ in range(2))
    until(lambda: len(processes.find(directory.read(), {})) == 2, "both carry the marker")
    for number in (0, 1):
        enlist(directory, number, identify(rank.pid))
    # As where a process waits in the kernel, or belongs to another user.
    monkeypatch.setattr(escalation, "send", lambda process, number: False)
    monkeypatch.setattr(escalation, "_KILL_PATIENCE_S", 0.05)
    with pytest.raises(Refused) as left:
        kill(directory)
    for said in (f"rank with pid {rank.pid}", f"helper with pid {helper.pid}", f"`ddptop kill {directory.name}` tries"):
        assert said in str(left.value)
    assert survey.settle(directory).state == "running"
    rank.kill()
    rank.wait()
    assert survey.settle(directory).state == "running"
    with pytest.raises(Refused):
        kill(directory)
    helper.kill()
    helper.wait()
    assert survey.settle(directory).state == "killed"


def test_what_a_kill_cannot_reach_is_a_survivor(new_run: NewRun, python: Python) -> None:
    """A rank that another container holds, and the process that the command was started from."""
    directory = new_run(observer=GONE, torchrun=identify(os.getpid()))
    enlist(directory, 0, identify(python(WAIT).pid))
    enlist(directory, 1, Process(7, 1.0, boot(), namespace() + "0"))
    hold = Hold.acquire(directory.path)
    with pytest.raises(Refused) as left:
        kill(directory)
    hold.release()
    assert "1 rank ended, 2 left" in str(left.value)
    assert f"torchrun with pid {os.getpid()} (this command was started from within it" in str(left.value)
    assert "rank 1 with pid 7 (lives in another pid namespace" in str(left.value)
    assert directory.read().ended_at_ns is None


@pytest.mark.parametrize("lost", ["folder", "record"])
def test_a_live_run_whose_folder_or_record_is_lost_can_be_ended(
    new_run: Callable[..., RunDir],
    python: Callable[..., subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lost: str,
) -> None:
    """By the mark in the environment of its processes, and with nobody of another run."""
    directory = new_run(state="running")
    base, name = directory.path.parent, f"gone-{os.getpid()}"
    said = "its folder is gone"
    if lost == "record":
        name, said = directory.name, "its record cannot be read"
        record = directory.path / "run.json"
        content = record.read_bytes()
        record.write_bytes(content[:100])
    processes = {}
    for run in (name, f"{name}-too"):
        monkeypatch.setenv(rundir.DIRECTORY_VARIABLE, str(base / run))
        monkeypatch.setenv(rundir.MARKER, f"id-of-{run}")
        processes[run] = python(WAIT)
    for variable in (rundir.DIRECTORY_VARIABLE, rundir.MARKER):
        monkeypatch.delenv(variable)
    monkeypatch.setattr("sys.argv", ["ddptop", "kill", name])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().out) == (
        0, f"{name}: {said}; 1 process of it ended, 0 left\n"
    )  # fmt: skip
    assert processes.pop(name).wait(10) == -signal.SIGTERM
    (other,) = processes.values()
    assert other.poll() is None
    other.kill()
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    if lost == "record":
        record.write_bytes(content)
