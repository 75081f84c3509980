"""Finding and ending the processes of a run, and nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ddptop.agent.group import ladder, processes
from ddptop.agent.rundir import Member, Process, RunDir, identify

from .conftest import marked

Start = Callable[..., subprocess.Popen[str]]

SLEEP = "import time; print('up', flush=True); time.sleep(100)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(100)"


def ready(process: subprocess.Popen[str]) -> Process:
    """Wait until the process has printed a line, and return its identity."""
    assert process.stdout
    assert process.stdout.readline()
    found = identify(process.pid)
    assert found
    return found


def end(directory: RunDir, grace_s: float = 0.3) -> tuple[ladder.Outcome, list[str]]:
    """End the run and return outcome and progress."""
    lines: list[str] = []
    return ladder.end(directory, directory.read(), grace_s, lines.append), lines


def enlist(directory: RunDir, rank: int, process: Process) -> None:
    """Write a rank's record."""
    directory.write_member(Member(rank, rank, 2, process, "host", 0, "", "", None))


def test_the_marker_decides(new_run: Callable[..., RunDir], python: Start) -> None:
    """A process of the run is ended; its look-alikes without the marker, or with that of another run, are not."""
    directory = new_run()
    run_id = directory.read().run_id
    ours, bare, other = python(SLEEP, run_id), python(SLEEP), python(SLEEP, run_id + "0")
    for process in (ours, bare, other):
        ready(process)
    outcome, _ = end(directory)
    assert outcome.text == "0 ranks and 1 helper ended, 0 left"
    assert ours.wait(5) == -signal.SIGTERM
    assert bare.poll() is None
    assert other.poll() is None


def test_the_deaf_are_killed_and_the_stopped_may_end_in_order(new_run: Callable[..., RunDir], python: Start) -> None:
    """SIGKILL reaches what ignores SIGTERM, once the grace period is over; what is stopped is let go to take it."""
    directory = new_run()
    run_id = directory.read().run_id
    deaf, stopped = python(DEAF, run_id), python(SLEEP, run_id)
    for rank, process in enumerate((deaf, stopped)):
        enlist(directory, rank, ready(process))
    os.kill(stopped.pid, signal.SIGSTOP)
    outcome, lines = end(directory)
    assert (deaf.wait(5), stopped.wait(5)) == (-signal.SIGKILL, -signal.SIGTERM)
    assert outcome == ladder.Outcome(2, 0)
    assert lines == ["SIGTERM to 2 ranks", f"SIGKILL to rank (pid {deaf.pid}), still there after 0.3 s"]


def test_new_sessions_new_parents_and_scrubbed_environments_do_not_hide(
    new_run: Callable[..., RunDir], python: Start, tmp_path: Path
) -> None:
    """A daemon is found by its marker, a child without marker by its parent; a zombie counts as nothing."""
    directory = new_run()
    pids = tmp_path / "pids"
    parent = python(
        f"""
import os, subprocess, sys, time
scrubbed = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], env={{}}, stdout=subprocess.PIPE, text=True)
scrubbed.stdout.readline()
read, write = os.pipe()
middle = os.fork()
if middle == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(write, str(os.getpid()).encode())
        time.sleep(100)
    os._exit(0)
os.waitid(os.P_PID, middle, os.WEXITED | os.WNOWAIT)   # it is a zombie now, and stays one
daemon = int(os.read(read, 20))
open({str(pids)!r}, "w").write(f"{{scrubbed.pid}} {{daemon}}")
print("up", flush=True)
time.sleep(100)
""",
        directory.read().run_id,
    )
    enlist(directory, 0, ready(parent))
    scrubbed, daemon = map(int, pids.read_text().split())
    assert os.getsid(daemon) != os.getsid(0)
    outcome, _ = end(directory)
    assert (outcome.ranks, outcome.helpers, outcome.survivors) == (1, 2, ())
    assert identify(scrubbed) is None
    assert identify(daemon) is None
    parent.wait(5)


def test_children_forked_during_the_kill_are_found(new_run: Callable[..., RunDir], python: Start) -> None:
    """A process that answers SIGTERM by forking leaves nobody behind."""
    directory = new_run()
    run_id = directory.read().run_id
    fertile = python(
        """
import os, signal, time
def fork(*_):
    for _ in range(3):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.setsid()
            time.sleep(100)
signal.signal(signal.SIGTERM, fork)
print("up", flush=True)
while True: time.sleep(1)
""",
        run_id,
    )
    enlist(directory, 0, ready(fertile))
    outcome, _ = end(directory)
    assert (outcome.ranks, outcome.helpers, outcome.survivors) == (1, 3, ())
    fertile.wait(5)
    assert not marked(run_id)


def test_a_reused_number_is_never_signalled(
    new_run: Callable[..., RunDir], python: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose start time differs from the record is a stranger, with pidfds and without."""
    directory = new_run()
    stranger = python(SLEEP)
    process = ready(stranger)
    past = Process(process.pid, process.started - 5)
    enlist(directory, 0, past)
    assert not processes.send(past, signal.SIGKILL)
    assert end(directory)[0] == ladder.Outcome(0, 0)
    monkeypatch.delattr(os, "pidfd_open")
    assert not processes.send(past, signal.SIGKILL)
    assert stranger.poll() is None
    assert processes.send(process, signal.SIGKILL)
    assert stranger.wait(5) == -signal.SIGKILL


def test_the_caller_and_those_above_it_are_spared(new_run: Callable[..., RunDir]) -> None:
    """A record that names the caller's own parent as torchrun, by mistake or malice, ends nobody."""
    directory = new_run()
    directory.update(torchrun=identify(os.getppid()))
    enlist(directory, 0, identify(os.getpid()) or Process(0, 0))
    assert processes.find(directory.read(), directory.members()) == []


def test_one_rank_only(new_run: Callable[..., RunDir], python: Start) -> None:
    """Ending a rank takes its helpers along and leaves the other ranks; a rank that is not there is refused."""
    directory = new_run()
    run_id = directory.read().run_id
    worker = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); p.wait()"
    first, second = python(worker, run_id), python(SLEEP, run_id)
    enlist(directory, 0, ready(first))
    enlist(directory, 1, ready(second))
    outcome = ladder.end_rank(directory, directory.read(), 0, 0.3, lambda line: None)
    assert outcome == ladder.Outcome(1, 1)
    first.wait(5)
    assert marked(run_id) == [second.pid]
    with pytest.raises(ValueError, match="rank 0: already ended"):
        ladder.end_rank(directory, directory.read(), 0, 0.3, lambda line: None)
    with pytest.raises(ValueError, match="rank 5: not in this run"):
        ladder.end_rank(directory, directory.read(), 5, 0.3, lambda line: None)


def test_the_run_of_nobody_has_no_processes(new_run: Callable[..., RunDir], python: Start) -> None:
    """An empty run id is no marker that everything without one would match."""
    directory = new_run(run_id="")
    ready(python(SLEEP))
    assert processes.find(directory.read(), {}) == []
