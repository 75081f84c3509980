"""A child that a rank forks speaks for itself alone, however it ends."""

from __future__ import annotations

import msgspec
import pytest

from ddptop.agent.end import cause
from ddptop.agent.run.rundir import Ended

FORK = """
import json, os, sys, time
from ddptop import agent
if os.fork() == 0:
    agent.start(note="the child's")
    agent.log(x=1)
    {end}
pid, status = os.wait()
folder = os.environ["DDPTOP_RUN_DIR"]
with open(folder + "/ranks/0.json") as file:
    ended = json.load(file)["ended"]
sockets = sorted(name[2:] for name in os.listdir(folder) if name.startswith("0."))
print(os.waitstatus_to_exitcode(status), ended, sockets)
sys.exit(3)
"""

WORKERS = """
import multiprocessing, os
def work(): print("worked", flush=True)
process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join()
print(process.exitcode, '"ended":null' in open(os.environ["DDPTOP_RUN_DIR"] + "/ranks/0.json").read())
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(7)", 7),
        ("raise ValueError('in the child')", 1),
        ("os._exit(4)", 4),
    ],
)
def test_a_forked_child_writes_no_end(rank, end, code):
    """It ends as under plain Python; the rank's record says nothing of it, and the sockets stay where they are."""
    done = rank.run(FORK.replace("{end}", end))
    assert done.returncode == 3, done.stderr
    assert rank.log.splitlines()[-1] == f"{code} None ['cmd', 'pub']"
    assert rank.member.ended.exit_code == 3


def test_a_child_that_comes_to_the_end_of_the_script_writes_no_end(rank):
    """The rank is killed afterwards: of its end there is no word."""
    done = rank.run("import os, signal, time\nif os.fork():\n    os.wait()\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    assert done.returncode == -9
    assert rank.member.ended is None


def test_a_worker_of_multiprocessing_writes_no_end(rank):
    """Forked by the library, it ends by way of the library."""
    rank.run(WORKERS)
    assert rank.log.splitlines() == ["worked", "0 True"]


def test_a_child_may_train_where_the_agent_of_its_parent_held_a_lock(rank):
    """What the thread of the agent holds at the fork is held for good in the child, which does not wait for it."""
    script = """
import os, threading
from ddptop import agent
from ddptop.agent.rank.records import device_time
session = agent._listener
held, done = threading.Event(), threading.Event()
def hold():
    with session.gate.lock, device_time.CAPTURES._lock:
        held.set()
        done.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    for _ in range(100):
        session.end_step()
        session.count()
    device_time.CAPTURES.begin()
    os._exit(len(session.stamps.finished))
done.set()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert rank.run(script).returncode == 0
    assert rank.log == "1\n"


def test_an_end_that_another_process_wrote_is_not_believed(rank):
    """A killed run is not finished because a child of its rank has left such a record."""
    rank.run("import os; os.kill(os.getpid(), 9)")
    member = rank.member
    foreign = msgspec.structs.replace(member, ended=Ended(5, 0, pid=member.process.pid + 1))
    assert cause.judge(1, {0: foreign}, -9).state == "failed"
    rank.directory.write_member(foreign)
    assert rank.member.ended is None
    old = msgspec.structs.replace(member, ended=Ended(5, 0))
    assert cause.judge(1, {0: old}, 1).state == "finished"
