"""A group that nobody prepared is listed without a trace, met by any name of it, and ended with all that is its."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.harness import ddptop, started, until

from ddptop.agent.client import runs
from ddptop.agent.client.acting.control import RunControl
from ddptop.agent.client.look import frames
from ddptop.agent.client.runs import RunDirError
from ddptop.agent.client.sources import unprepared
from ddptop.agent.run import rundir
from ddptop.agent.run.identity import identify, is_alive
from ddptop.agent.run.rundir import Member, RunDir
from ddptop.agent.wire.vocabulary.refusals import Refused

LAUNCHER = """
import os, subprocess, sys, time
def start(port):
    return [
        subprocess.Popen([sys.executable, sys.argv[1], sys.argv[2]],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port})
        for rank in (0, 1)
    ]
ranks = start("1")
while any(rank.poll() is None for rank in ranks):
    time.sleep(0.02)
    if os.path.exists("next"):
        os.unlink("next")
        ranks += start("2")
"""
RANK = """
import mmap, os, subprocess, sys, time
torch = open(sys.argv[1], "rb")
held = mmap.mmap(torch.fileno(), 0, access=mmap.ACCESS_READ)
if os.environ["RANK"] == "0":
    # Once its parent has ended, nothing but what was seen before shows that it belongs to the rank.
    between = "import os, subprocess; print(os.getpid(), subprocess.Popen(['sleep', '1000']).pid, flush=True); input()"
    subprocess.Popen([sys.executable, "-c", between], stdout=open(sys.argv[1] + ".pids", "w"), stdin=-1, env={})
print("up", flush=True)
while True:
    time.sleep(0.1)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Two ranks that look as if they had loaded torch, below a launcher, and a process beside them of the same user."""
    library = tmp_path / "libtorch_cpu.so"
    library.write_bytes(bytes(mmap.PAGESIZE))
    (tmp_path / "loop.py").write_text(LAUNCHER)
    (tmp_path / "training.py").write_text(RANK)
    environment = {**os.environ, rundir.BASE_VARIABLE: str(rundir.base())}
    words = sys.executable, tmp_path / "loop.py", tmp_path / "training.py", library
    with open(tmp_path / "out.log", "w") as log, started(*words, cwd=tmp_path, stdout=log, env=environment) as process:
        until(lambda: (tmp_path / "out.log").read_text().count("up") == 2, "both ranks")
        until(lambda: (tmp_path / "libtorch_cpu.so.pids").read_text().endswith("\n"), "what rank 0 starts")
        yield process
        for name in _group():
            RunControl.of(runs.find(name), "the test").kill(0.0, None, lambda line: None)


def _group() -> list[str]:
    return [name for name in runs.unprepared() if name.startswith("training-")]


def _lines() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ddptop("ps", "--json").stdout)
    return [each for each in found if each["run"].startswith("training-")]


def test_it_is_met_by_any_of_its_names_and_ended(job: subprocess.Popen[str], tmp_path: Path) -> None:
    """It is listed without a directory; its name, its launcher and its ranks mean one run, and a kill leaves nothing.

    An orphan of a rank is ended with it, and a stranger beside it lives.
    """
    (line,) = _lines()
    name = line["run"]
    assert (line["state"], line["world"]) == ("running", 2)
    assert not (rundir.base() / name).exists()
    stranger = subprocess.Popen(["sleep", "1000"])
    try:
        run = runs.of_process(job.pid)
        members = run.directory.members()
        assert {run.name, runs.find(name[:-2]).name, runs.of_process(members[1].process.pid).name} == {name}
        record = run.record()
        assert (record.outside, record.launched, record.world, record.starter) == (True, False, 2, identify(job.pid))
        assert [(each.by_agent, each.log) for each in members.values()] == [(False, str(tmp_path / "out.log"))] * 2
        assert _group() == []
        control = RunControl.of(run, "the test")
        with pytest.raises(Refused, match=r"nobody prepared this job.*pause training-.* --freeze"):
            control.pause()
        (frame,) = frames([run], "the test")
        assert (frame.state, [rank.state for rank in frame.ranks]) == ("running", ["running"] * 2)
        # The thread that does this has looked at the processes before.
        control.signal(signal.SIGCONT, None)
        between, orphan = map(identify, map(int, (tmp_path / "libtorch_cpu.so.pids").read_text().split()))
        assert between is not None
        os.kill(between.pid, signal.SIGKILL)
        until(lambda: orphan in run.record().known, "that its observer knows the orphan")
        done = control.kill(5.0, None, lambda line: None)
        assert done.startswith("2 ranks and 1 helper ended, 0 left"), done
        left = [orphan, *(member.process for member in members.values())]
        assert not any(map(is_alive, left))
        assert stranger.poll() is None
        assert run.ended() is not None
    finally:
        stranger.kill()
        stranger.wait()


def test_the_next_trial_of_a_sweep_outlives_the_first(job: subprocess.Popen[str], tmp_path: Path) -> None:
    """A script that starts one training beside the other stays with the second one, also at once after its start."""
    control = RunControl.of(run := runs.of_process(job.pid), "the test")
    # Its observer is there once it has answered.
    control.signal(signal.SIGCONT, None)
    (tmp_path / "next").touch()
    until(lambda: (tmp_path / "out.log").read_text().count("up") == 4, "the next trial")
    first = [member.process for member in run.directory.members().values()]
    with pytest.raises(RunDirError, match=f"process {job.pid} has started several: name one of training-.*, training-"):
        runs.of_process(job.pid)
    assert control.kill(5.0, None, lambda line: None).startswith("2 ranks and 2 helpers ended, 0 left")
    assert not any(map(is_alive, first))
    assert job.poll() is None
    (second,) = (group for group in unprepared.found() if group.name in _group())
    assert len(second.ranks) == 2


def test_who_was_stopped_by_others_stays_stopped(job: subprocess.Popen[str]) -> None:
    """A freeze stops all ranks and is undone; a rank that somebody else has stopped is not continued by a resume."""
    control = RunControl.of(runs.of_process(job.pid), "the test")
    assert control.freeze().startswith("frozen: 2 ranks")
    members = runs.of_process(job.pid).directory.members()
    assert {_status(each.process.pid) for each in members.values()} == {"T"}
    assert control.resume().startswith("goes on after")
    os.kill(members[0].process.pid, signal.SIGSTOP)
    until(lambda: _status(members[0].process.pid) == "T", "the stop")
    with pytest.raises(Refused, match="somebody else has stopped"):
        control.resume()
    assert _status(members[0].process.pid) == "T"
    assert ", 0 left" in control.kill(5.0, None, lambda line: None)


def _status(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_process_of_no_training_says_so() -> None:
    """The pid of a process without torch is refused in one line, and nothing is made."""
    before = sorted(os.listdir(rundir.base()))
    with pytest.raises(RunDirError, match=f"process {os.getpid()} .* is of no training") as refusal:
        runs.of_process(os.getpid())
    assert "\n" not in str(refusal.value)
    assert sorted(os.listdir(rundir.base())) == before


def test_the_pid_of_a_run_left_behind_may_be_anothers(new_run: Callable[..., RunDir]) -> None:
    """A run whose observer was lost has the pid of a process that has ended, and that another one has now."""
    own = identify(os.getpid())
    assert own is not None
    directory = new_run(launched=False, outside=True, state="running")
    past = msgspec.structs.replace(own, started=own.started - 60)
    for process, found in ((past, None), (own, directory.path)):
        directory.write_member(Member(0, 0, 1, process, "host", 0, "", "", None, by_agent=False))
        meant = unprepared.of_process(own.pid)
        assert (None if meant is None else meant.path) == found
