"""Real runs of two ranks, controlled from other processes, looked at through /proc."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from support.harness import DEADLINE_S, carriers, ddptop, started, status, until, write_script
from support.processes.ranks import plain
from support.processes.scripts import TRAIN
from support.values.watches import watched

from ddptop.agent import wire
from ddptop.agent.client.watch import Watch
from ddptop.agent.record import recording as recorded
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.run.switches import recording


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the scripts."""
    path = tmp_path_factory.mktemp("scripts")
    write_script(path, TRAIN)
    return path


def torchrun(
    folder: Path, world: int, *arguments: str, output: int = subprocess.PIPE
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", *arguments]
    return started(*command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)


@pytest.fixture(scope="module")
def live(folder) -> RunDir:
    """A run that goes on until it is killed by the last test that uses it; shared by the tests below."""
    options = ("--world", "2", "--name", "live", "--detach")
    with pytest.MonkeyPatch.context() as monkeypatch:
        # A rank that gets little of a core records fewer steps than it makes, and its history is compared with them.
        monkeypatch.setenv(recording.VARIABLE, "1")
        done = ddptop("launch", *options, "train.py", "--", "1000000", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "live\n"
    directory = rundir.find("live")
    until(lambda: (status("live")["step"] or 0) > 5, "the first steps")
    return directory


def test_status_tells_what_proc_tells(live):
    """Pids are live processes with the run's marker, torchrun is their parent, and steps go on."""
    first = status("live")
    assert first["state"] == "running"
    assert (first["world"], first["backend"], first["device"]) == (2, "gloo", "cpu")
    marked = carriers(live.read().run_id)
    for rank in first["ranks"]:
        assert rank["pid"] in marked
        assert f"PPid:\t{first['pid']}\n" in Path(f"/proc/{rank['pid']}/status").read_text()
        assert sum(rank["phases_ms"].values()) == pytest.approx(rank["step_ms"], rel=0.01)
        assert rank["allreduce_ms"]["p50"] > 0
        resident = int(Path(f"/proc/{rank['pid']}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert rank["memory_bytes"] == pytest.approx(resident, rel=0.1)
    until(lambda: status("live")["step"] > first["step"], "more steps")


def test_parameters_are_bit_identical_with_and_without_the_agent(live, folder):
    """After 20 steps with BatchNorm, dropout and momentum, the digest of the parameters is the same."""
    with plain(folder / "train.py", "20") as ranks:
        ranks.wait()
    until(lambda: (status("live")["step"] or 0) > 20, "the steps under the agent")
    watched = "".join(live.rank_log(rank).read_text() for rank in (0, 1))
    with_agent, without = (dict(re.findall(r"digest (\d) ([0-9a-f]{64})", out)) for out in (watched, ranks.said))
    assert len(without) == 2, ranks.said
    assert with_agent == without


def polled(link: Watch) -> Watch:
    """Return the link after it has heard what there is."""
    link.poll()
    return link


def test_a_late_joiner_gets_the_history_since_the_start(live):
    """The losses that a dashboard shows from step 1 on are those that the script itself printed."""
    link = watched(live, looks_back=True)
    try:
        history = link.frame().history
        assert history is not None
        # What is looked at is asked for.
        until(lambda: polled(link) and len(history.by_step.read(1, "loss").steps), "the history")
        until(lambda: polled(link) and history.by_step.complete, "all of it")
        found = history.by_step.read(1, "loss")
    finally:
        link.close()
    printed = {}
    for line in live.rank_log(1).read_text().splitlines():
        if line.startswith("loss "):
            _, step, loss = line.split()
            printed[int(step)] = float(loss)
    assert found.steps[0] <= 64
    before = 0
    for late, value, count in zip(found.steps[:20], found.mean, found.count, strict=False):
        expected = [printed[step] for step in range(before + 1, int(late) + 1)]
        assert count == len(expected)
        assert value == pytest.approx(sum(expected) / len(expected), rel=1e-6)
        before = int(late)


def test_a_name_in_use_is_refused(live, folder):
    """A second run of the same name: one line, exit code 2, the first one untouched."""
    done = ddptop("launch", "--name", "live", "--plain", "train.py", cwd=folder)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert status("live")["state"] == "running"


def test_one_process_or_one_signal_and_only_of_this_run(live):
    """`kill --pid` refuses a stranger; a signal stops and continues a rank, with a word on the risk."""
    me = ddptop("kill", "live", "--pid", str(os.getpid()))
    assert (me.returncode, f"process {os.getpid()}: not of run live" in me.stderr) == (1, True)
    assert ddptop("kill", "live", "--signal", "NONSENSE").returncode == 2
    before = status("live")
    pid = before["ranks"][1]["pid"]
    stopped = ddptop("kill", "live", "--rank", "1", "--signal", "stop")
    assert (stopped.returncode, stopped.stdout) == (0, f"live: SIGSTOP to rank (pid {pid})\n")
    assert "fail after the collective timeout" in stopped.stderr
    until(lambda: "T (stopped)" in Path(f"/proc/{pid}/status").read_text(), "it is stopped")
    assert ddptop("kill", "live", "--signal", "CONT").returncode == 0
    until(lambda: (status("live")["step"] or 0) > before["step"] + 20, "steps after SIGCONT")


def test_the_run_outlives_its_observer_and_another_takes_over(live):
    """After kill -9 of the observer ps meets the run and another takes over; pause, resume and kill work."""
    run = live.read()
    seen = status("live")["step"]
    os.kill(run.observer.pid, 9)
    until(lambda: status("live")["supervised"] and live.read().observer != run.observer, "another observer")
    assert ddptop("pause", "live").returncode == 0
    assert status("live")["state"] == "paused"
    assert ddptop("resume", "live").returncode == 0
    until(lambda: (status("live")["step"] or 0) > seen + 20, "more steps")
    until(lambda: _gaps(live) == [] and _recorded(live) > seen, "the recording without gaps")
    done = ddptop("kill", "live", "--grace", "3")
    assert done.returncode == 0, done.stderr
    assert "2 ranks ended, 0 left" in done.stdout
    assert carriers(run.run_id) == []
    assert [path.name for path in live.path.iterdir() if path.suffix in (".pub", ".cmd") or path.name == "lock"] == []
    (row,) = (row for row in json.loads(ddptop("ps", "--json").stdout) if row["run"] == "live")
    assert row["state"] == "killed"


def test_an_ended_run_is_started_again_by_its_name(live, folder):
    """With the command line and the options it had, from the script as it stands by now."""
    assert ddptop("restart", "live", "--resume").returncode == 1
    script = (folder / "train.py").read_text()
    try:
        # Something that needs no torch.
        (folder / "train.py").write_text("import os\nprint('again, rank', os.environ['RANK'])")
        again = ddptop("restart", "live", "--detach")
        assert (again.returncode, again.stdout) == (0, "live.2\n"), again.stderr
        until(lambda: rundir.find("live.2").read().exit_code is not None, "its end")
    finally:
        (folder / "train.py").write_text(script)
    old, new = rundir.find("live").read(), rundir.find("live.2").read()
    assert (new.command, new.cwd, new.max_restarts) == (old.command, old.cwd, 0)
    assert (old.state, new.state) == ("killed", "finished")
    printed = [rundir.find("live.2").rank_log(rank).read_text() for rank in (0, 1)]
    assert printed == ["again, rank 0\n", "again, rank 1\n"]


def _numbers(directory: RunDir) -> list[int]:
    """Return the numbers of rank 0's records in the run's file, read without the code under test."""
    with contextlib.closing(sqlite3.connect(directory.database)) as connection:
        spans = connection.execute("SELECT first_seq, last_seq FROM steps WHERE rank = 0").fetchall()
    return sorted({number for first, last in spans for number in range(first, last + 1)})


def _gaps(directory: RunDir) -> list[int]:
    numbers = _numbers(directory)
    return sorted(set(range(1, max(numbers, default=0) + 1)) - set(numbers))


def _recorded(directory: RunDir) -> int:
    return max(_numbers(directory), default=0)


def _last_steps(directory: RunDir) -> set[int]:
    """Return the last step that is recorded of each rank: where not every one is, the records' numbers are others."""
    messages = [each for each in recorded.read_steps(directory.database) if isinstance(each, wire.Steps)]
    return set({message.rank: message.steps[-1].step for message in messages}.values())


def test_a_job_started_by_hand_is_seen_and_controlled(folder):
    """By torchrun -m ddptop.agent script.py: it is in ps, recorded, paused and killed, and there after its end."""
    # Nobody reads what it prints: into a pipe the ranks would stand after a thousand steps.
    with torchrun(folder, 2, "-m", "ddptop.agent", "train.py", "1000000", output=subprocess.DEVNULL) as process:

        def mine() -> list[str]:
            runs = [(run.name, run.read().torchrun) for run in rundir.runs()]
            return [name for name, leader in runs if leader is not None and leader.pid == process.pid]

        until(mine, "the job to be known", 4 * DEADLINE_S)
        (name,) = mine()
        until(lambda: (status(name)["step"] or 0) > 3, "its steps", 4 * DEADLINE_S)
        (row,) = (row for row in json.loads(ddptop("ps", "--json").stdout) if row["pid"] == process.pid)
        assert (row["run"], row["state"]) == (name, "running")
        directory = rundir.find(name)
        run_id = directory.read().run_id
        assert ddptop("pause", name).returncode == 0
        held = status(name)
        assert held["state"] == "paused"
        # A rank tells ten times a second what it has recorded.
        until(lambda: _last_steps(directory) == {held["step"]}, "the record of the last step")
        assert "0 left" in ddptop("kill", name).stdout
        process.wait(timeout=DEADLINE_S)
        assert carriers(run_id) == []
        until(lambda: not rundir.is_alive(directory.read().observer), "its observer has gone")
        assert (status(name)["state"], status(name)["step"]) == ("killed", held["step"])
        assert _last_steps(directory) == {held["step"]}
