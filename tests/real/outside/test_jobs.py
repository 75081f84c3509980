"""Jobs that nobody prepared, as people start them: each is found and grouped right, and ended with all that is its."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.harness import ddptop, started, until

from ddptop.agent.client import runs
from ddptop.agent.client.acting.control import RunControl
from ddptop.agent.run import rundir
from ddptop.agent.run.identity import Process, identify, is_alive
from ddptop.agent.wire import Event

PROGRAMS = Path(__file__).with_name("programs")
TORCHRUN = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
ACCELERATE = (
    "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
    "--mixed_precision", "no", "--dynamo_backend", "no",
)  # fmt: skip
JOBS = {
    "torchrun": (*TORCHRUN, "plain.py"),
    "mp.spawn": ("spawning.py", "STORE"),
    "Accelerate": (*ACCELERATE, "accelerated.py"),
    "Lightning": ("lit.py",),
    "HF Trainer": (*TORCHRUN, "trainer.py", "STORE"),
    "FSDP2": (*TORCHRUN, "sharded.py"),
    "nanoGPT": (*TORCHRUN, "gpt.py"),
    "subprocess": ("looping.py", "STORE"),
}
NEEDS = {"Accelerate": "accelerate", "Lightning": "lightning", "HF Trainer": "transformers"}
OWN_LAUNCHER = {"Lightning"}
"""Those whose first process is rank 0."""
# In one write: what ranks print in pieces, others print into.
_SAID = re.compile(r"^rank (\d) is (\d+)$", re.MULTILINE)


@pytest.fixture(params=JOBS)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[str], Path]]:
    """Each job, with two ranks on the CPU, its output in a file."""
    name = request.param
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    words = [str(tmp_path / "store") if word == "STORE" else word for word in JOBS[name]]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", rundir.BASE_VARIABLE: str(rundir.base())}
    log = tmp_path / "out.log"
    with (
        open(log, "w") as output,
        started(sys.executable, *words, cwd=PROGRAMS, stdout=output, stderr=output, env=environment) as process,
    ):
        yield name, process, log
        # Whatever the test has come to, nothing is left.
        for pid in said(log).values():
            subprocess.run(["kill", "-9", str(pid)], check=False, capture_output=True)


def said(log: Path) -> dict[int, int]:
    """Return the pid of each rank, as the ranks themselves have printed it."""
    return {int(rank): int(pid) for rank, pid in _SAID.findall(log.read_text())}


def listed() -> list[str]:
    """Return the names of the jobs of this test's base that nobody has attached to."""
    return runs.unprepared()


def test_it_is_found_and_ended(job: tuple[str, subprocess.Popen[str], Path]) -> None:
    """`ps` lists it as one group without a trace, its ranks are those that torch numbers so, and a kill leaves nothing.

    Any rank and the process that was started name it; while it is frozen all of its ranks stand.
    """
    name, process, log = job

    def trains() -> bool:
        assert process.poll() is None, log.read_text()[-2000:]
        return len(said(log)) == 2 and len(listed()) == 1

    until(trains, "both ranks")
    (group,) = listed()
    assert f"{group} " in ddptop("ps").stdout
    assert not (rundir.base() / group).exists()
    run = runs.of_process(process.pid)
    members = run.directory.members()
    assert (run.name, {rank: member.process.pid for rank, member in members.items()}) == (group, said(log))
    assert [runs.of_process(pid).name for pid in said(log).values()] == [group] * 2
    record = run.record()
    assert record.world == 2
    assert (record.torchrun or record.starter) == (None if name in OWN_LAUNCHER else identify(process.pid))
    assert {member.log for member in members.values()} == {str(log)}
    control = RunControl.of(run, "the test")
    assert control.freeze().startswith("frozen: 2 ranks")
    assert {status(member.process) for member in members.values()} == {"T"}
    assert control.resume().startswith("goes on")
    below = every(process.pid)
    assert len(below) >= 2
    assert ", 0 left" in control.kill(5.0, None, lambda line: None)
    assert [each.pid for each in below if is_alive(each)] == []
    assert listed() == []
    ended = run.ended()
    assert ended is not None
    assert ended.state == "killed"


def test_a_restart_is_followed_and_orphans_are_ended(tmp_path: Path) -> None:
    """The ranks of torchrun's next start are those of the run, and are ended with it also once torchrun is gone."""
    log = tmp_path / "out.log"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", rundir.BASE_VARIABLE: str(rundir.base())}
    words = sys.executable, *TORCHRUN, "--max-restarts", "3", "restarted.py"
    with (
        open(log, "w") as output,
        started(*words, cwd=PROGRAMS, stdout=output, stderr=output, env=environment) as process,
    ):
        until(lambda: len(said(log)) == 2 and len(listed()) == 1, "both ranks")
        run, first = runs.of_process(process.pid), said(log)
        control = RunControl.of(run, "the test")
        # Its observer is there once it has answered.
        control.signal(signal.SIGCONT, None)
        os.kill(first[1], signal.SIGKILL)
        until(lambda: said(log).keys() == {0, 1} and not set(said(log).values()) & set(first.values()), "a restart")
        until(lambda: pids(run) == said(log), "the new ranks in its record")
        until(lambda: any(event.startswith("restart 1") for event in events(run)), "the event of the restart")
        assert any("rank 1 was killed by SIGKILL" in event for event in events(run))
        process.kill()
        process.wait()
        until(lambda: any("its ranks go on without it" in event for event in events(run)), "that torchrun is missed")
        left = [member.process for member in run.directory.members().values()]
        assert all(map(is_alive, left))
        assert control.kill(5.0, None, lambda line: None).startswith("2 ranks")
        assert not any(map(is_alive, left))


def pids(run: runs.Run) -> dict[int, int]:
    """Return the pid of each rank by the records of the run."""
    return {rank: member.process.pid for rank, member in run.directory.members().items()}


def events(run: runs.Run) -> list[str]:
    """Return the texts of its events."""
    return [each.text for each in run.happened() if isinstance(each, Event)]


def status(process: Process) -> str:
    """Return the letter of a process in the process table."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def every(pid: int) -> list[Process]:
    """Return a process and all below it, by the kernel's own lists of children."""
    found = identify(pid)
    tasks = [each / "children" for each in Path(f"/proc/{pid}/task").iterdir()]
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return ([] if found is None else [found]) + [each for child in children for each in every(child)]
