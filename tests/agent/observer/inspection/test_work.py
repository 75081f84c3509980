"""The work of real processes that no stack shows: its bytes and its CPU time, beside what the process says itself."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import msgspec
import pytest
from support.harness import until

from ddptop.agent.observer.inspection.work import Works
from ddptop.agent.observer.judge.hang.activity import moved
from ddptop.agent.observer.judge.hang.progress import ONE
from ddptop.agent.run.identity import identify
from ddptop.agent.wire import Work

SCRIPT = """
import hashlib, os, signal, socket, subprocess, sys, threading, time

# Who waits for a line ends with the test.
COPY = "import sys; open(sys.argv[1], 'wb').write(bytes(4 << 20)); print('copied', flush=True); sys.stdin.readline()"
BURN = "import time; end = time.process_time() + float(%r)\\nwhile time.process_time() < end: pass"


def server(count):
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    for _ in range(count):
        asked, _ = listening.accept()
        asked.sendall(bytes(1 << 20))
        if len(sys.argv) > 3:
            print("sent", flush=True)
            sys.stdin.readline()
            asked.close()
    signal.pause()


def files():
    with open(sys.argv[2], "wb") as file:
        file.write(bytes(1 << 20))
    print("written", flush=True)
    signal.pause()


def sockets():
    with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as asked:
        left = 1 << 20
        while left:
            left -= len(asked.recv(left))
        print("received", flush=True)
        signal.pause()


def downloads():
    while True:
        with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as asked:
            while asked.recv(1 << 16):
                pass
        print("received", flush=True)
        sys.stdin.readline()


def threads():
    def burn():
        while time.thread_time() < 0.5:
            hashlib.sha256(bytes(1 << 20))

    thread = threading.Thread(target=burn)
    thread.start()
    thread.join()
    print("burnt", flush=True)
    signal.pause()


def trainer():
    def burn():
        print(threading.get_native_id(), flush=True)
        sys.stdin.readline()
        while time.thread_time() < 0.5:
            hashlib.sha256(bytes(1 << 20))
        print("burnt", flush=True)
        signal.pause()

    threading.Thread(target=burn).start()
    signal.pause()


def child():
    # A shell between them.
    subprocess.run(["sh", "-c", f"{sys.executable} -c '{BURN % 0.5}'; true"])
    print("burnt", flush=True)
    signal.pause()


def grandchild():
    # The grandchild lives on, and so does the shell between them.
    burn = BURN % 0.5 + "\\nprint(1, flush=True); input()"
    subprocess.run(["sh", "-c", f'{sys.executable} -ISc "$0"; true', burn])


def copying():
    subprocess.run([sys.executable, "-ISc", COPY, sys.argv[2]])


if sys.argv[1] == "server":
    server(int(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
globals()[sys.argv[1]]()
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start the script, and end it with the test."""
    started = []

    def begin(*given: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *map(str, given)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def work(pid: int, own_bytes: int = 0, spared: tuple[int, ...] = (), works: Works | None = None) -> Work:
    """Return the work of a process up to now."""
    process = identify(pid)
    assert process is not None
    return (works or Works()).measure({1: process}, {1: own_bytes}, spared)[1]


def line(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def let_go(process: subprocess.Popen[str]) -> None:
    """Let a process do what it is for."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_the_cpu_of_the_training_thread_is_no_work_of_other_threads(start):
    """It may be another one than the main thread, and it may spin in a collective."""
    process = start("trainer")
    assert line(process) == "ready"
    let_go(process)
    trainer = int(line(process))
    identified = identify(process.pid)
    assert identified is not None

    def both() -> list[int]:
        found = [Works().measure({1: identified}, {}, (), trainers)[1] for trainers in ({1: trainer}, {})]
        return [each.thread_cpu_ms for each in found]

    before = both()
    let_go(process)
    line(process)
    with_trainer, without = (now - then for now, then in zip(both(), before, strict=True))
    assert with_trainer < 100
    assert without >= 400


@pytest.mark.parametrize(
    ("does", "field", "least", "says"),
    [
        ("files", "file_bytes", 1 << 20, "works: it writes files"),
        ("sockets", "socket_bytes", 1 << 20, "reads from a socket"),
        ("threads", "thread_cpu_ms", 400, "its threads compute"),
        ("child", "child_cpu_ms", 400, "compute"),
        ("grandchild", "child_cpu_ms", 400, "its 2 child processes compute"),
        ("copying", "child_bytes", 4 << 20, "its child process moves data"),
    ],
)
def test_what_a_process_and_its_children_do_is_measured_and_what_they_do_not_is_not(
    start, tmp_path, does, field, least, says
):
    """A megabyte written, and one received by `recv`; half a second of a thread, of a grandchild that has ended, and of
    one that lives; four megabytes written by a child that lives.
    """
    more: tuple[object, ...] = ()
    if does == "sockets":
        more = (line(start("server", 1)),)
    elif does in ("files", "copying"):
        more = (tmp_path / "file",)
    process = start(does, *more)
    assert line(process) == "ready"
    before = work(process.pid)
    assert moved(before, work(process.pid)) == "", "it waits for a line"
    let_go(process)
    line(process)
    after = work(process.pid)
    grown = {
        name: getattr(after, name) - getattr(before, name)
        for name in ("file_bytes", "socket_bytes", "thread_cpu_ms", "child_cpu_ms", "child_bytes")
    }
    assert grown[field] >= least
    assert says in moved(before, msgspec.structs.replace(after, at_ns=before.at_ns + ONE))
    bounds = {"file_bytes": 500_000, "socket_bytes": 1, "thread_cpu_ms": 100, "child_cpu_ms": 100, "child_bytes": 1}
    if does == "child":
        # Those of a child are its parent's as soon as it has ended.
        del grown["file_bytes"]
    elif does == "grandchild":
        # It has read modules.
        del grown["child_bytes"]
    others = {name: value for name, value in grown.items() if name != field and value >= bounds[name]}
    assert others == {}


def test_a_rank_that_serves_others_does_no_work_by_it(start):
    """The bytes of connections that it has accepted are not its own: the store of a group answers all along."""
    serves = start("server", 1)
    asks = start("sockets", line(serves))
    assert line(asks) == "ready"
    before = work(serves.pid)
    let_go(asks)
    assert line(asks) == "received"
    assert work(serves.pid).socket_bytes == before.socket_bytes


def test_the_bytes_of_a_connection_that_was_closed_stay_those_of_its_rank(start):
    """Three downloads of a megabyte, each seen before its server closes it: three megabytes, three connections."""
    serves = start("server", 3, "waits")
    asks = start("downloads", line(serves))
    assert line(asks) == "ready"
    works = Works()

    def download(number: int) -> None:
        let_go(asks)
        assert line(serves) == "sent"
        until(lambda: work(asks.pid, works=works).socket_bytes >= number << 20, f"download {number} is seen")
        let_go(serves)
        assert line(asks) == "received"

    assert work(asks.pid, works=works).connections == 0
    for number in (1, 2, 3):
        download(number)
        after = work(asks.pid, works=works)
        assert after.connections == number
        assert after.socket_bytes < (number << 20) + 1000


def test_a_connection_that_nobody_accepts_is_none():
    """A rank that tries again and again to reach a server does not come on by that."""
    works = Works()
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))

        def connect() -> None:
            asks = stack.enter_context(socket.socket())
            asks.setblocking(False)
            asks.connect_ex(listening.getsockname())

        before = work(os.getpid(), works=works).connections
        connect()
        until(lambda: work(os.getpid(), works=works).connections == before + 1, "the one that waits to be accepted")
        for _ in range(3):
            connect()
        assert work(os.getpid(), works=works).connections == before + 1


def test_what_others_do_is_no_work_of_the_rank(start, tmp_path):
    """Its agent's bytes, and the whole of a child that is another rank."""
    process = start("files", tmp_path / "file")
    assert line(process) == "ready"
    assert work(process.pid).file_bytes - work(process.pid, own_bytes=1000).file_bytes == 1000
    parent = start("child")
    assert line(parent) == "ready"
    let_go(parent)
    until(lambda: work(parent.pid).children, "a child")
    pids = [int(each) for each in subprocess.check_output(["pgrep", "-P", str(parent.pid)], text=True).split()]
    assert work(parent.pid, spared=tuple(pids)).children == 0
