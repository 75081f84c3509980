"""Without descriptors, threads, room or a folder there is no agent, and the script runs all the same."""

from __future__ import annotations

import os
import resource
import shutil

import pytest
import zmq

from ddptop.agent.rank import publisher

TRAIN = """
import time
from ddptop import agent
agent.start(total_steps=3)
agent.log(x=1)
time.sleep(0.2)
print("trained", flush=True)
"""


@pytest.mark.parametrize("descriptors", [10, 18, 26, 40])
def test_without_descriptors_the_script_runs(rank, descriptors):
    """However few are left when ZeroMQ begins, it never ends the process; the rank says once what is missing."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    done = rank.run(TRAIN, before=limit)
    assert (done.returncode, rank.log.splitlines()[-1]) == (0, "trained"), done.stderr
    assert rank.member.ended.exit_code == 0
    if descriptors < 32:
        assert "no agent in this rank (OSError: [Errno 24] Too many open files" in rank.log
        assert len(rank.log.splitlines()) == 2


def test_without_threads_the_script_runs(rank):
    """No memory for another stack: nothing of ours ends the process."""
    # The limit comes where the agent begins: the interpreter itself has to start. A stack is larger than what is left,
    # and what is left is enough for everything else.
    script = TRAIN
    prepare = """
import resource, threading
from ddptop.agent.rank.process import scarcity
begin = scarcity.check_room
def limited():
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (128 << 20), resource.RLIM_INFINITY))
    threading.stack_size(256 << 20)
    begin()
"""
    folder = rank.folder / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(prepare + "scarcity.check_room = limited\n")
    done = rank.run(script, PYTHONPATH=str(folder), MALLOC_ARENA_MAX="1")
    assert (done.returncode, rank.log.splitlines()[-1]) == (0, "trained"), done.stderr
    assert "no agent in this rank (RuntimeError: can't start new thread); the training goes on" in rank.log


def test_without_a_folder_for_the_sockets_the_script_runs(rank):
    """The run directory is a disk without a free place: binding fails, and what is bound is let go."""
    script = "print('trained')"
    for name in ("0.pub", "0.cmd"):
        # A folder that is not empty, where a socket should be.
        (rank.directory.path / name / "x").mkdir(parents=True)
    done = rank.run(script)
    assert (done.returncode, rank.log.splitlines()[-1]) == (0, "trained")
    assert "no agent in this rank (ZMQError: " in rank.log
    assert rank.member.ended.exit_code == 0


def test_on_a_full_disk_the_script_runs(rank, small_disk):
    """No room for a record, a socket or a log line: the output stays, the exit code is the script's."""
    ranks = rank.directory.path / "ranks"
    small_disk(4, ranks)
    (ranks / "ballast").write_bytes(bytes(4096))
    done = rank.run("import sys\nprint('trained')\nsys.exit(3)")
    assert (done.returncode, rank.log) == (3, "trained\n")
    assert rank.directory.members() == {}


def test_the_message_itself_cannot_fail(rank):
    """No agent, and nowhere to say so: stderr is closed, or a reader of it that has gone."""
    shutil.rmtree(rank.directory.path / "ranks")
    environment = {"DDPTOP_RUN_DIR": "/nowhere/at/all"}

    def close() -> None:
        os.close(2)

    def gone() -> None:
        read, write = os.pipe()
        os.close(read)
        os.dup2(write, 2)

    def full() -> None:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2)

    for before in (close, gone, full):
        done = rank.run("print('trained')", before=before, **environment)
        assert (done.returncode, done.stdout) == (0, "trained\n")


def test_what_is_bound_before_a_failure_is_let_go(rank, monkeypatch):
    """The second socket cannot be bound: no descriptor, no thread and no socket file of the first stays."""
    from ddptop.agent.rank.session import Session

    monkeypatch.delenv("RANK", raising=False)
    (rank.directory.path / "0.cmd" / "x").mkdir(parents=True)
    session = Session(rank.directory, run_id="x", program="x", log=None)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(zmq.ZMQError):
            publisher.Publisher(session, rank.directory.address(0, "pub"), rank.directory.address(0, "cmd"))
    assert len(os.listdir("/proc/self/fd")) == before
    assert not (rank.directory.path / "0.pub").exists()
