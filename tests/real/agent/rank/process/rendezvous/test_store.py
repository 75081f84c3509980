"""The meeting in torch's own store: it changes nothing of the training, and neither its output nor its end."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest
from support.bases import base_of_its_own
from support.harness import DEADLINE_S, own_words, write_script
from support.processes.ranks import observed

from ddptop.agent.run import hosts, rundir
from ddptop.agent.run.hosts import Listen
from ddptop.agent.run.rundir import RunDir

TRAINING: Final = """
import os, sys, threading, time, light, torch
import torch.distributed as dist
torch.manual_seed(int(os.environ["RANK"]))
dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 1))
optimizer = light.Descent(model)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().sum().backward()
    optimizer.step()
deadline = time.monotonic() + 240
while not os.path.exists(sys.argv[1] + "/done") and time.monotonic() < deadline:
    time.sleep(0.05)
with open(f"{sys.argv[1]}/threads-{os.environ['RANK']}", "w") as file:
    file.write(" ".join(sorted(thread.name for thread in threading.enumerate())))
torch.save(model.state_dict(), f"{sys.argv[1]}/parameters-{os.environ['RANK']}")
dist.barrier()
dist.destroy_process_group()
"""

EXITS: Final = 20
"""Scripts that end."""
ENDS: Final = '''
"""Reads a key in a thread of the agent while the store dies, and while the interpreter ends, again and again."""
import gc, os, signal, socket, sys, threading, time
import torch
import torch.distributed as dist
from torch.distributed import TCPStore
from ddptop.agent.rank.process import rendezvous
from ddptop.agent.run.rundir import RunDir
from pathlib import Path

rendezvous._SOON_S = rendezvous._LATER_S = 0.0005
rendezvous._COMES_S = float("inf")
told = []
parent = os.getpid()

def begin(port):
    made = rendezvous.Exchange(RunDir(Path(sys.argv[1])), head=False, where=("127.0.0.1", port), kind=TCPStore,
                             tell=told.append)
    made.start()
    return made

def serve():
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, int(os.read(reader, 10))
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    os.write(writer, str(store.port).encode())
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(0)

def fail(made):
    sys.excepthook = lambda *_: None
    raise RuntimeError

def end_by_signal(made):
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()

def end_by_handler(made):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    end_by_signal(made)

def end_with_thread(made):
    threading.Thread(target=lambda: (time.sleep(0.02), sys.exit(7))).start()

WAYS = [
    (lambda made: sys.exit(4), 4),
    (lambda made: made.stop(), 0),
    (lambda made: os._exit(3), 3),
    (fail, 1),
    (end_by_signal, -signal.SIGTERM),
    (end_by_handler, 143),
    (end_with_thread, 0),
    (lambda made: os.execv("/bin/sh", ["sh", "-c", "exit 5"]), 5),
    (lambda made: None, 0),
]

# What is there is not looked through by each child at its end.
gc.freeze()
child, port = serve()
# Nobody can listen at a port that is bound here.
taken = socket.socket()
taken.bind(("127.0.0.1", 0))
dead = begin(taken.getsockname()[1])
bad = []
for number in range(int(sys.argv[2])):
    end, expected = WAYS[number % len(WAYS)]
    pid = os.fork()
    if pid == 0:
        made = begin(port)
        if number % 4:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        time.sleep(0.005 * (number % 7))
        if number % 4 == 1:
            dist.destroy_process_group()
        end(made)
        sys.exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    bad += [(number % len(WAYS), code)] if code != expected else []
# As rarely as in earnest, since torch would warn of an end within a call.
rendezvous._SOON_S = rendezvous._LATER_S = 1.0
looked, count = threading.Event(), rendezvous.Exchange._count
rendezvous.Exchange._count = lambda made, store: (count(made, store), looked.set())[0]
made = begin(port)
assert looked.wait(30)
os.kill(child, 9)
os.waitpid(child, 0)
rendezvous._SETTLES_S = 0.0
while made.runs:
    time.sleep(0.01)
dead.stop()
print(bad, len(told))
'''


@pytest.fixture
def bases() -> Iterator[list[Path]]:
    """Return the bases of two hosts."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(base_of_its_own()) for _ in range(2)]


@pytest.mark.timeout(600)
def test_the_ends_of_store_and_script_are_silent(tmp_path: Path) -> None:
    """Of many scripts that end within a call into the store none crashes; the end of the store prints nothing.

    They return, exit, raise, are told to end or are replaced, with and without a group: each exit code is their own.
    """
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(EXITS)],
        capture_output=True,
        text=True,
        timeout=9 * DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[] 1", "")


def train(folder: Path, bases: list[Path], *, plain: bool) -> tuple[list[str], list[str]]:
    """Train with a rank on each of two hosts; return a checksum of each's parameters, and its output.

    Each writes its threads to a file.
    """
    folder.mkdir()
    script = write_script(folder, TRAINING)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, *(() if plain else ("-m", "ddptop.agent")), str(script), str(folder)],
            env={
                **os.environ,
                **told,
                rundir.BASE_VARIABLE: str(base),
                "RANK": str(number),
                "LOCAL_RANK": "0",
                "GROUP_RANK": str(number),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number, base in enumerate(bases)
    ]
    try:
        if not plain:
            meet(bases)
        (folder / "done").touch()
        output = [rank.communicate(timeout=4 * DEADLINE_S)[0] for rank in ranks]
        # Torch itself may abort a process that is done.
        assert {rank.returncode for rank in ranks} <= {0, -signal.SIGABRT}, output
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [hashlib.sha256((folder / f"parameters-{n}").read_bytes()).hexdigest() for n in range(2)], output


def meet(bases: list[Path]) -> None:
    """Wait until the address of the head is on the other host; where no observer has written one, it is the test's."""
    deadline = time.monotonic() + 4 * DEADLINE_S
    own: Listen | None = None
    while True:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        found = [run for base in bases for run in rundir.runs_in(base, os.getuid())] if all(bases) else []
        if len(found) < 2:
            continue
        head, other = (directory.path for directory in found)
        if head.parent != bases[0]:
            head, other = other, head
        listen = hosts.read_listen(head, hosts.LISTEN)
        if listen is None and own is None and hosts.read_rendezvous(head) is not None:
            run = RunDir(head).read()
            own = Listen(run.run, run.run_id, "a", ("tcp://127.0.0.1:1",), *(letter * 40 for letter in "abc"))
            hosts.write_listen(head, hosts.LISTEN, own)
        if listen is not None and hosts.read_listen(other, hosts.HEAD) == listen:
            assert head.name == other.name
            assert msgspec.structs.astuple(listen)[:2] == (head.name, RunDir(other).read().run_id)
            return


@pytest.mark.timeout(600)
def test_parameters_are_the_same_bits_as_without(tmp_path: Path, bases: list[Path]) -> None:
    """Of a group on two hosts, whose observers meet meanwhile; the ranks print what they print without ddptop."""
    plain, printed = train(tmp_path / "plain", bases, plain=True)
    watched, output = train(tmp_path / "watched", bases, plain=False)
    assert plain == watched
    assert [own_words(each) for each in output] == printed
    assert all("ddptop-hosts" in (tmp_path / f"watched/threads-{n}").read_text().split() for n in range(2))


def test_ranks_of_one_host_meet_nobody(tmp_path: Path) -> None:
    """All ranks are on one host: there is no thread that looks for others, and no record of how to meet."""
    (tmp_path / "done").touch()
    env = {"LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    with observed("here", write_script(tmp_path, TRAINING), str(tmp_path), env=env) as (run, ranks):
        # Torch itself may abort a process that is done.
        assert ranks.wait() in (0, -signal.SIGABRT), ranks.said
    for number in range(2):
        threads = (tmp_path / f"threads-{number}").read_text().split()
        assert "MainThread" in threads
        assert "ddptop-hosts" not in threads
    assert not (run.path / "hosts").exists()
