"""The end of an allocation, asked of a squeue that stands for Slurm's, and the task to which a run belongs."""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.harness import WAITING, until
from support.values.reports import RUN

from ddptop.agent import wire
from ddptop.agent.launcher import slurm
from ddptop.agent.observer.end import exits
from ddptop.agent.observer.hosts.elsewhere import is_elsewhere
from ddptop.agent.observer.jobs import scheduler
from ddptop.agent.observer.jobs.scheduler import Allocation, Scheduler
from ddptop.agent.observer.service.requests import Requests
from ddptop.agent.run.identity import Process, identify


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A squeue that answers with the content of a file, and counts how often."""
    program = tmp_path / "squeue"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncat {tmp_path}/answer\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def ask(allocation: Allocation, environment: dict[str, str]) -> None:
    """Take steps until a question has been answered."""

    def is_answered() -> bool:
        allocation.turn(lambda: environment)
        return allocation._question is None

    allocation.turn(lambda: environment)
    until(is_answered, "an answer")


def test_the_end_is_asked_for(squeue: Path) -> None:
    """Of Slurm, by the number of the job, without waiting, and no more than once in half an hour."""
    (squeue / "answer").write_text("1-02:03:04\n")
    clock = [1000.0]
    allocation = Allocation(lambda: clock[0])
    ask(allocation, {"SLURM_JOB_ID": "4711"})
    assert allocation.ends_at_ns == int((1000 + 86400 + 2 * 3600 + 3 * 60 + 4) * 1e9)
    for seconds in range(60):
        clock[0] = 1000.0 + seconds
        allocation.turn(dict)
    assert (squeue / "asked").read_text().splitlines() == ["--noheader --jobs=4711 --format=%L"]
    clock[0] += 1800
    (squeue / "answer").write_text("UNLIMITED\n")
    ask(allocation, {})
    assert allocation.ends_at_ns is None


def test_a_newer_slurm_tells_the_end_itself(squeue: Path) -> None:
    """Then nobody is asked."""
    allocation = Allocation()
    allocation.turn(lambda: {"SLURM_JOB_ID": "1", "SLURM_JOB_END_TIME": "1795419765"})
    allocation.turn(dict)
    assert allocation.ends_at_ns == 1795419765 * 10**9
    assert not (squeue / "asked").exists()


def test_a_squeue_that_hangs_holds_nobody_up(squeue: Path) -> None:
    """It is ended after a while, and asked three times at most."""
    (squeue / "squeue").write_text(f"#!/bin/sh\nexec {shlex.join(WAITING)}\n")
    clock = [0.0]
    allocation = Allocation(lambda: clock[0])
    for _ in range(40):
        clock[0] += 10
        # A turn that waited for it would wait for ever.
        allocation.turn(lambda: {"SLURM_JOB_ID": "1"})
    assert allocation.ends_at_ns is None
    assert allocation._question is None
    assert allocation._failures == 3
    allocation.close()


@pytest.mark.parametrize("job", ["", "x; rm", "1" * 40])
def test_without_a_job_nobody_is_asked(job: str, squeue: Path) -> None:
    """Nor for what is no number of a job."""
    clock = [0.0]
    allocation = Allocation(lambda: clock[0])
    for _ in range(5):
        clock[0] += 100
        allocation.turn(lambda: {"SLURM_JOB_ID": job} if job else {})
    assert not (squeue / "asked").exists()


def test_without_slurm_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container has the variables of the job, and no squeue."""
    monkeypatch.setenv("PATH", "/nonexistent")
    allocation = Allocation()
    allocation.turn(lambda: {"SLURM_JOB_ID": "1"})
    assert allocation.ends_at_ns is None
    assert allocation._due == float("inf")


@given(st.integers(0, 10**6), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_every_time_left_is_read(days: int, hours: int, minutes: int, seconds: int) -> None:
    """As squeue prints it: days, hours and minutes are left out where they are 0, but for minutes."""
    days %= 10**4
    text = f"{minutes}:{seconds:02d}" if not (days or hours) else f"{hours}:{minutes:02d}:{seconds:02d}"
    text = f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}" if days else text
    assert scheduler.seconds_left(text) == days * 86400 + hours * 3600 + minutes * 60 + seconds


@given(st.text(max_size=30))
def test_any_other_answer_is_none(text: str) -> None:
    """Whatever it is, it is a time, or no limit, or said to be no answer."""
    try:
        told = scheduler.seconds_left(text)
    except ValueError:
        return
    assert (told is None) == (":" not in text)


def test_an_end_that_is_known_stays_while_slurm_does_not_answer(squeue: Path) -> None:
    """It fails without a word, and the observer reads the exit status of all its children: that tells nothing here.

    The question comes again soon, and at last every half an hour.
    """
    (squeue / "answer").write_text("1:00:00\n")
    clock = [1000.0]
    allocation = Allocation(lambda: clock[0])
    ask(allocation, {"SLURM_JOB_ID": "1"})
    ends_at_ns = allocation.ends_at_ns
    assert ends_at_ns == 4600 * 10**9
    (squeue / "squeue").write_text(f"#!/bin/sh\necho failed >> {squeue}/asked\nexit 1\n")

    def is_answered() -> bool:
        exits.reap(None)
        allocation.turn(dict)
        return allocation._question is None

    for seconds in (1800, 60, 60, 1800):
        clock[0] += seconds - 1
        allocation.turn(dict)
        assert allocation._question is None
        clock[0] += 1
        allocation.turn(dict)
        until(is_answered, "an answer")
        assert allocation.ends_at_ns == ends_at_ns
    assert (squeue / "asked").read_text().splitlines()[1:] == ["failed"] * 4


def test_without_descriptors_it_asks_later(squeue: Path) -> None:
    """Nothing is raised: that would end the observer."""
    (squeue / "answer").write_text("1:00\n")
    clock = [1000.0]
    allocation = Allocation(lambda: clock[0])
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limit[1]))
    try:
        allocation.turn(lambda: {"SLURM_JOB_ID": "1"})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert allocation.ends_at_ns is None
    clock[0] += 60
    ask(allocation, {})
    assert allocation.ends_at_ns == 1120 * 10**9


@pytest.mark.parametrize("step", ["", "batch", "4294967290", "4294967291", "4294967292", "-5"])
def test_what_is_no_task(step: str) -> None:
    """The batch script and the shell of salloc are steps that Slurm makes itself; a task is one of srun."""
    assert not slurm.is_task({"SLURM_JOB_ID": "1", **({"SLURM_STEP_ID": step} if step else {})})
    assert slurm.is_task({"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"})


def test_a_run_ends_with_its_task() -> None:
    """Once, when the task has ended or when this process is told to end; a run without a task goes on."""
    requests = Requests()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as task:
        held = Scheduler(msgspec.structs.replace(RUN, holder=identify(task.pid), grace_s=3.0), requests)
        held.turn(())
        assert not list(requests.received())
        task.communicate(b"\n")
    held.turn(())
    held.turn(())
    ((sender, kill),) = requests.received()
    assert is_elsewhere(sender)
    assert isinstance(kill, wire.Kill)
    assert (kill.grace_s, kill.rank, kill.pid) == (3.0, None, None)
    assert f"process {task.pid}" in kill.who

    told = Scheduler(msgspec.structs.replace(RUN, holder=identify(os.getpid())), requests)
    assert told.end()
    told.turn(())
    ((_, kill),) = requests.received()
    assert isinstance(kill, wire.Kill)
    assert "SIGTERM" in kill.who

    free = Scheduler(RUN, requests)
    assert not free.end()
    free.turn(())
    assert not list(requests.received())
    requests.close()


def test_the_environment_of_a_rank_tells_the_job() -> None:
    """An observer that an agent has started has none of the scheduler's variables, and reads those of its ranks."""
    environment = {**os.environ, "SLURM_JOB_ID": "77", "OTHER": "x"}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment) as rank:
        process = identify(rank.pid)
        found = until(lambda: scheduler.environment_of(process), "its environment")
        assert found == {"SLURM_JOB_ID": "77"}
        rank.communicate(b"\n")
    assert scheduler.environment_of(None) == {}
    assert scheduler.environment_of(Process(2**22 + 1, 0.0)) == {}
