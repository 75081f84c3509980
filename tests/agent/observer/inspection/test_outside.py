"""Processes of a test, looked at from outside: by the system alone, and by the real py-spy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from support.harness import WAIT, WAIT_LOCKED, until

from ddptop.agent.observer.inspection import dumps, outside
from ddptop.agent.observer.inspection.dumps import Dump, Frame, Thread
from ddptop.agent.observer.judge.hang.looks import moves
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Member
from ddptop.agent.wire import Inspection

SCRIPT = f"""
import ctypes, sys, threading, time


def spin():
    while True:
        pass


def hold():
    {WAIT_LOCKED}  # the lock is held


def read():
    held = []
    while True:
        with open("/dev/zero", "rb") as file:
            held[:] = [*held[-40:], file.read(1 << 20)]
        time.sleep(0.02)


def sleep():
    {WAIT}


print("ready", flush=True)
{{"spin": spin, "hold": hold, "read": read, "sleep": sleep}}[sys.argv[1]]()
"""
Start = Callable[[str], Member]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a process that stands somewhere, as rank 0 of a run."""
    (tmp_path / "script.py").write_text(SCRIPT)
    processes: list[subprocess.Popen[str]] = []

    def make(way: str) -> Member:
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "script.py"), way], cwd=tmp_path, text=True, stdout=subprocess.PIPE
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return member_of(process.pid)

    yield make
    for process in processes:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def member_of(pid: int) -> Member:
    """Return the record of a process as rank 0."""
    process = rundir.identify(pid)
    assert process is not None
    return Member(0, 0, 2, process, "host", 3, "ipc:///none", "ipc:///none", None)


def look(member: Member, *, stacks: bool = False, native: bool = False, script: str = "") -> Inspection:
    """Look at one rank."""
    found = outside.look({0: member}, stacks=stacks, native=native, until=time.monotonic() + 60, script=script)
    return found[0]


def test_one_that_is_stopped_is_told_from_one_that_spins(start: Start) -> None:
    """Status and CPU are those of the system's own table."""
    spins, stopped = start("spin"), start("sleep")
    os.kill(stopped.process.pid, signal.SIGSTOP)
    until(lambda: psutil.Process(stopped.process.pid).status() == psutil.STATUS_STOPPED, "it to stop")
    told = look(stopped)
    assert (told.by, told.pid, told.status, told.cpu_percent) == ("system", stopped.process.pid, "stopped", 0.0)
    assert (told.generation, told.threads, told.traced_by) == (3, (), None)
    assert told.swapped_bytes is not None
    assert told.page_reads_per_s is not None

    def has_cpu() -> bool:
        return (look(spins).cpu_percent or 0) > 5

    until(has_cpu, "it to have a core")


def test_what_a_process_reads_and_holds_is_told(start: Start) -> None:
    """Resident memory as psutil reads it, and all that went through read and write."""
    reads, sleeps = start("read"), start("sleep")
    before = look(reads)
    until(lambda: (look(reads).moved_bytes or 0) - (before.moved_bytes or 0) >= 20 << 20, "it to have read")
    told = look(reads)
    assert told.memory_bytes == pytest.approx(psutil.Process(reads.process.pid).memory_info().rss, abs=32 << 20)
    assert moves([before, told])
    assert not moves([look(sleeps), look(sleeps)])


def test_only_the_process_that_is_meant_is_looked_at(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that has the pid of a former rank nothing is read."""
    later = start("sleep")
    former = msgspec.structs.replace(later, process=msgspec.structs.replace(later.process, started=1.0))
    monkeypatch.setattr(outside, "dumps", lambda pids, **_: pytest.fail("it was looked at"))
    told = look(former, stacks=True)
    assert (told.problem, told.status, told.by) == ("its process is gone", "", "system")


def test_one_of_another_container_is_not_taken_for_gone(start: Start) -> None:
    """Its pid means another process here."""
    member = start("sleep")
    process = msgspec.structs.replace(member.process, namespace="1")
    assert "another pid namespace" in look(msgspec.structs.replace(member, process=process)).problem


def test_what_py_spy_tells_is_hostile(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Names are cleaned, numbers bounded, and lines are read of the script's own files alone."""
    member = start("sleep")
    (tmp_path / "secret.txt").write_text("secret\n")
    (tmp_path / "linked.py").symlink_to(tmp_path / "secret.txt")
    (tmp_path.parent / "other.py").write_text("secret\n")
    files = ["script.py", "secret.txt", "linked.py", "../other.py"]
    frames = [Frame("\x1b[31mf" * 1000, str(tmp_path / file), 1 if index else 2) for index, file in enumerate(files)]
    threads = [
        Thread("ddptop-agent", 5, False, []),
        Thread("\x1b]0;title\x07other", -7, False, [Frame(line=-3), Frame("g", "libc.so.6", 0)]),
        Thread("MainThread", member.process.pid, True, frames),
    ]
    monkeypatch.setattr(outside, "dumps", lambda pids, **_: dict.fromkeys(pids, Dump(threads)))
    told = look(member, stacks=True, script=str(tmp_path / "script.py"))
    main, other = told.threads
    assert [frame.source for frame in main.frames] == ["import ctypes, sys, threading, time", "", "", ""]
    assert (main.name, main.main, main.holds_gil, main.native_id) == ("MainThread", True, True, member.process.pid)
    assert [frame.function[:3] for frame in main.frames] == ["fff"] * 4
    assert (other.name, other.native_id, other.holds_gil) == ("other", None, False)
    assert [(frame.line, frame.library) for frame in other.frames] == [(0, True), (0, True)]


@pytest.mark.skipif(dumps.executable() is None, reason="py-spy is not installed")
def test_the_line_that_holds_the_interpreter_lock_is_found(start: Start, tmp_path: Path) -> None:
    """The process itself could not tell; nor could one that is stopped, which stays so."""
    member = start("hold")
    told = look(member, stacks=True, script=str(tmp_path / "script.py"))
    if "forbids" in told.problem:
        pytest.skip(told.problem)
    main = told.threads[0]
    frame = main.frames[0]
    assert (told.by, told.problem, main.holds_gil) == ("py-spy", "", True)
    assert (frame.function, frame.file, frame.library) == ("hold", "script.py", False)
    assert frame.source == f"{WAIT_LOCKED}  # the lock is held"
    os.kill(member.process.pid, signal.SIGSTOP)
    until(lambda: psutil.Process(member.process.pid).status() == psutil.STATUS_STOPPED, "it to stop")
    told = look(member, stacks=True, native=True)
    assert (told.status, told.threads[0].frames[0].function) == ("stopped", "hold")
    assert "frames of C and C++" in told.problem
    assert psutil.Process(member.process.pid).status() == psutil.STATUS_STOPPED


def test_one_that_ends_meanwhile_is_gone(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks of a process that has the pid by then are nobody's."""
    member = start("sleep")

    def end(pids: dict[int, int], **_: object) -> dict[int, Dump]:
        psutil.Process(member.process.pid).kill()
        until(lambda: rundir.identify(member.process.pid) is None, "it to end")
        return dict.fromkeys(pids, Dump([Thread("MainThread", 1, True, [])]))

    monkeypatch.setattr(outside, "dumps", end)
    told = look(member, stacks=True)
    assert (told.threads, told.problem) == ((), "its process is gone")
