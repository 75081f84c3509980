"""Which process is meant, also where another container shares the directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from support.harness import WAIT, started, until

from ddptop.agent.client.sources import takeover
from ddptop.agent.end import survey
from ddptop.agent.run import identity, rundir
from ddptop.agent.run.identity import ELSEWHERE, Process, identify, is_alive, is_elsewhere, is_stopped, may_live
from ddptop.agent.run.rundir import Member, Run, RunDir

UP = f"print('up', flush=True); {WAIT}"
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc")


def can_unshare() -> bool:
    """Say whether this user may make a pid namespace."""
    return subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def me() -> Process:
    """The identity of this process."""
    found = identify(os.getpid())
    assert found
    return found


def test_the_namespace_is_the_one_the_number_counts_in(me: Process) -> None:
    """It is the inode that the kernel tells of this process, for whomever it looks at."""
    told = os.stat("/proc/self/ns/pid").st_ino
    assert me.namespace == str(told)
    with started(sys.executable, "-c", UP, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        found = identify(other.pid)
        assert found is not None
        assert found.namespace == str(told)


def test_a_record_without_namespace_compares_as_before(me: Process) -> None:
    """Old records lack it, and some systems have none: number, start and boot decide."""
    old = msgspec.json.decode(
        msgspec.json.encode({"pid": me.pid, "started": me.started, "boot": me.boot}), type=Process
    )
    assert old.namespace == ""
    assert is_alive(old)
    assert not is_elsewhere(old)
    assert not is_alive(msgspec.structs.replace(old, started=old.started - 1))


def test_a_number_of_another_namespace_is_never_signalled(me: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Number, start and boot fit, and still it may be anybody: it is neither alive nor taken for dead."""
    with started(sys.executable, "-c", UP, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        found = identify(other.pid)
        assert found
        foreign = msgspec.structs.replace(found, namespace="1")
        assert (is_alive(foreign), is_elsewhere(foreign), may_live(foreign)) == (False, True, True)
        assert not is_stopped(foreign)
        assert not identity.send(foreign, signal.SIGKILL)
        monkeypatch.delattr(os, "pidfd_open")
        assert not identity.send(foreign, signal.SIGKILL)
        assert other.poll() is None
        assert is_alive(found)
    # Another boot settles it: whatever that was is gone.
    past = msgspec.structs.replace(me, namespace="1", boot="an earlier one")
    assert (is_alive(past), is_elsewhere(past), may_live(past)) == (False, False, False)


def test_a_stopped_process_is_told_from_one_that_runs(me: Process) -> None:
    """As `/proc` says it, and back."""
    assert not is_stopped(me)
    assert not is_stopped(None)
    with started(sys.executable, "-c", UP, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        found = identify(other.pid)
        os.kill(other.pid, signal.SIGSTOP)
        until(lambda: is_stopped(found), "it stands still")
        assert is_alive(found)
        os.kill(other.pid, signal.SIGCONT)
        until(lambda: not is_stopped(found), "it goes on")


@pytest.mark.skipif(not can_unshare(), reason="needs the right to make a pid namespace")
def test_a_run_of_another_container_is_left_alone(tmp_path: Path) -> None:
    """Its processes live though their numbers are nobody's here: no lost run, no other observer, no signal."""
    process = Process(1, 1.0)
    name = f"boxed-{time.monotonic_ns() % 10**9}"
    run = Run(name, name, "x.py", (), 1, None, None, time.time_ns() - 10**11, True, state="running")
    directory = rundir.create(run)
    inside = (
        "import os, pathlib, sys, time, msgspec\n"
        "from ddptop.agent.run.identity import identify\n"
        "from ddptop.agent.run.files.private import Hold\n"
        "hold = Hold.acquire(pathlib.Path(sys.argv[1]))\n"
        "print(msgspec.json.encode(identify(os.getpid())).decode(), flush=True)\n"
        "sys.stdin.read()"
    )
    boxed = (*CONTAINER, "--kill-child", sys.executable, "-c", inside, directory.path)
    with started(*boxed, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as box:
        assert box.stdout
        process = msgspec.convert(json.loads(box.stdout.readline()), Process)
        assert process.pid == 1
        assert process.namespace not in ("", identity.namespace())
        directory.update(observer=process, torchrun=process)
        directory.write_member(Member(0, 0, 1, process, "host", 0, "", "", None))
        found = takeover.meet(directory)
        assert (found.state, found.supervised, found.alive, found.cause) == ("running", True, (0,), ELSEWHERE)
        assert directory.read().state == "running"
        assert not directory.observer_log.exists(), "no other observer was started"
        refused = refusal(directory)
        assert f"run {name} lives in another pid namespace (container): not visible from here" in refused
        assert box.poll() is None
        assert directory.read().killed_by is None
    # What a rank has written at its end is known all the same.
    directory.write_member(Member(0, 0, 1, process, "host", 0, "", "", None, rundir.Ended(1, 0)))
    assert survey.look(directory).alive == ()
    directory.update(state="finished")


def refusal(directory: RunDir) -> str:
    """Return what the shell says to a kill that is refused."""
    done = subprocess.run(
        [sys.executable, "-m", "ddptop.tui.cli.main", "kill", directory.name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    return done.stderr


def test_a_process_is_described_as_psutil_does() -> None:
    """What is read here without psutil says the same: relatives, status and command line."""
    with subprocess.Popen([sys.executable, "-c", UP, "two words", ""], stdout=subprocess.DEVNULL) as child:
        try:
            known = psutil.Process(child.pid)
            until(lambda: identity.command(child.pid)[-1:] == ("",), "the program runs")
            until(lambda: identity.table()[child.pid].status == known.status() == psutil.STATUS_SLEEPING, "it sleeps")
            assert identity.table()[child.pid].parent == known.ppid() == os.getpid()
            assert identity.command(child.pid) == tuple(known.cmdline())
            os.kill(child.pid, signal.SIGSTOP)
            until(lambda: identity.table()[child.pid].status == known.status() == psutil.STATUS_STOPPED, "it stops")
        finally:
            child.kill()
    assert {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP} == identity.STOPPED
    assert identity.STATUS_DISK_SLEEP == psutil.STATUS_DISK_SLEEP


def test_the_command_of_a_process_that_is_gone_is_empty() -> None:
    """Nothing is known of it, and nothing is raised."""
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    assert identity.command(gone.pid) == ()
