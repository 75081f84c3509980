"""The ranks of a job that something else launched find each other's run, and no earlier one."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddptop.agent.rank.process import enrolment
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Process, RunDir


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment of a rank whose launcher tells host and port alone, and not how many ranks are here."""
    for name in ("TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE", "RANK", "LOCAL_RANK", "GROUP_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", secrets.token_hex(4))
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("WORLD_SIZE", "4")


def test_a_job_that_is_started_again_gets_a_run_of_its_own() -> None:
    """From the same shell on the same port: ranks of one job join one run, and the runs of ended ones stay."""
    names = []
    for _ in range(3):
        directory, run_id = enrolment._find_or_make("train.py", ())
        again, same = enrolment._find_or_make("train.py", ())
        assert (again.path, same) == (directory.path, run_id)
        assert directory.read().run_id == run_id
        directory.update(state="finished")
        names.append((directory.name, run_id))
    assert len(set(names)) == len({run_id for _, run_id in names}) == 3
    assert all(RunDir(directory.path.with_name(name)).read().run_id == run_id for name, run_id in names)


@pytest.mark.parametrize(
    ("told", "world", "expected"),
    [
        ("2", "4", 2),
        ("4", "4", 4),
        ("5", "4", None),
        ("0", "4", None),
        ("-1", "4", None),
        (None, "4", None),
        (None, "1", 1),
    ],
)
def test_ranks_on_this_host(
    monkeypatch: pytest.MonkeyPatch, told: str | None, world: str, expected: int | None
) -> None:
    """As many as the launcher tells; nothing where it tells none, or what cannot be."""
    monkeypatch.setenv("WORLD_SIZE", world)
    if told is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", told)
    directory, _ = enrolment._find_or_make("train.py", ())
    assert directory.read().local_world == expected


@pytest.fixture
def bases() -> Iterator[list[Path]]:
    """Return the bases of two hosts."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="d1-") as one, tempfile.TemporaryDirectory(dir="/tmp") as two:
        yield [Path(one), Path(two)]


def on_host(
    monkeypatch: pytest.MonkeyPatch, base: Path, node: int, launcher: Process | None = None, **environment: str
) -> RunDir:
    """Enrol the first rank of one of two hosts, each with a torchrun of its own where it has one."""
    monkeypatch.setenv(rundir.BASE_VARIABLE, str(base))
    told = {"RANK": str(2 * node), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": str(node)}
    for name, value in {**told, **environment}.items():
        monkeypatch.setenv(name, value)
    if launcher is not None:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
        identify = rundir.identify
        monkeypatch.setattr(rundir, "identify", lambda pid: launcher if pid == os.getppid() else identify(pid))
    directory, run_id = enrolment._find_or_make("train.py", ())
    monkeypatch.undo()
    assert directory.read().run_id == run_id
    return directory


@pytest.fixture
def launchers() -> Iterator[list[Process]]:
    """Return two living processes, one in the place of each host's torchrun."""
    children = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)]
    try:
        found = [rundir.identify(child.pid) for child in children]
        yield [process for process in found if process is not None]
    finally:
        for child in children:
            child.communicate(b"\n")


def test_a_job_on_two_hosts_has_one_name(
    monkeypatch: pytest.MonkeyPatch, bases: list[Path], launchers: list[Process]
) -> None:
    """Name and id are the same on both, of each of three jobs after each other; each host knows its own ranks."""
    seen = set()
    for job in range(3):
        told = {"MASTER_ADDR": "node1", "MASTER_PORT": "29400", "WORLD_SIZE": "4"}
        both = [
            on_host(monkeypatch, base, node, process, **told)
            for node, (base, process) in enumerate(zip(bases, launchers, strict=True))
        ]
        runs = [directory.read() for directory in both]
        assert runs[0].run == runs[1].run
        assert runs[0].run_id == runs[1].run_id
        assert [(run.local_world, run.node, run.nodes) for run in runs] == [(2, 0, 2), (2, 1, 2)]
        # torchrun restarts its ranks, and another host or port may be that of rank 0 then.
        again = on_host(monkeypatch, bases[1], 1, launchers[1], **{**told, "MASTER_PORT": str(40000 + job)})
        assert again.path == both[1].path
        seen.add(runs[0].run_id)
        for directory in both:
            directory.update(state="finished")
    assert len(seen) == 3


def test_an_elastic_job_that_goes_on_without_the_other_host_keeps_its_run(
    monkeypatch: pytest.MonkeyPatch, bases: list[Path], launchers: list[Process]
) -> None:
    """The same torchrun starts fewer ranks, and then as many as before: the record has the present number."""
    told = {"MASTER_ADDR": "node1", "MASTER_PORT": "29400"}
    first = on_host(monkeypatch, bases[0], 0, launchers[0], **told, WORLD_SIZE="4")
    for world, nodes in ((2, 1), (4, 2)):
        again = on_host(monkeypatch, bases[0], 0, launchers[0], **told, WORLD_SIZE=str(world))
        run = again.read()
        assert again.path == first.path
        assert (run.world, run.local_world, run.nodes) == (world, 2, nodes)


def test_a_job_is_not_taken_for_the_last_one_of_a_dead_torchrun(
    monkeypatch: pytest.MonkeyPatch, bases: list[Path], launchers: list[Process]
) -> None:
    """The record of that may say for ever that it runs, where its observer was killed."""
    told = {"MASTER_ADDR": "node1", "MASTER_PORT": "29400", "WORLD_SIZE": "4"}
    dead = Process(launchers[0].pid, launchers[0].started - 100.0, launchers[0].boot, launchers[0].namespace)
    before = on_host(monkeypatch, bases[0], 0, dead, **told)
    assert on_host(monkeypatch, bases[0], 0, launchers[0], **told).path != before.path


def test_two_nodes_of_a_job_on_one_host_share_its_run(
    monkeypatch: pytest.MonkeyPatch, bases: list[Path], launchers: list[Process]
) -> None:
    """Both torchruns have one run directory then, in which all four ranks are of this host."""
    told = {"MASTER_ADDR": "node1", "MASTER_PORT": "29400", "WORLD_SIZE": "4"}
    first = on_host(monkeypatch, bases[0], 0, launchers[0], **told)
    second = on_host(monkeypatch, bases[0], 1, launchers[1], **told)
    assert first.path == second.path
    assert first.read().local_world == 4


@pytest.mark.parametrize("restarts", ["", "1"])
def test_tasks_of_slurm_have_one_run(monkeypatch: pytest.MonkeyPatch, bases: list[Path], restarts: str) -> None:
    """Without torchrun, and before the script tells an address: by the step and how often the job was requeued."""
    monkeypatch.delenv("MASTER_ADDR")
    monkeypatch.delenv("MASTER_PORT")
    monkeypatch.delenv("WORLD_SIZE")
    names = set()
    for task, base in enumerate(bases):
        monkeypatch.setenv(rundir.BASE_VARIABLE, str(base))
        told = {"JOB_ID": "7", "STEP_ID": "0", "PROCID": task, "LOCALID": 0, "NODEID": task, "STEP_NUM_TASKS": 2}
        told |= {"STEP_TASKS_PER_NODE": "1(x2)", "STEP_NUM_NODES": 2, "RESTART_COUNT": restarts}
        for name, value in told.items():
            monkeypatch.setenv(f"SLURM_{name}", str(value))
        directory, run_id = enrolment._find_or_make("train.py", ())
        names.add((directory.name, run_id))
        run = directory.read()
        assert (run.world, run.local_world, run.node, run.nodes) == (2, 1, task, 2)
    assert len(names) == 1


@pytest.mark.parametrize(("rank", "restarts", "says"), [("0", "0", True), ("1", "0", False), ("0", "1", False)])
def test_rank_0_says_once_which_run_this_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], rank: str, restarts: str, says: bool
) -> None:
    """In one line on stderr, with what shows it; no other rank does, nor rank 0 when the group is started again."""
    for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("TORCHELASTIC_RESTART_COUNT", restarts)):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(enrolment, "_find_or_make", lambda *_: (RunDir(Path("/nowhere/train-7f")), "id"))
    monkeypatch.setattr(os, "execve", lambda *_: None)
    # Not pytest's own, which has another descriptor than the process.
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    enrolment.enrol_and_restart("train.py", ())
    line = "ddptop: this is run train-7f; `ddptop attach train-7f` in another terminal shows it\n"
    assert capfd.readouterr().err == (line if says else "")
