"""A process that a rank starts has the rank's environment, and is no rank."""

from __future__ import annotations

import contextlib
import os
import subprocess

import pytest
from support.harness import WAITING, started

from ddptop.agent.launcher import launcher
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.process import ancestry
from ddptop.agent.run import rundir
from ddptop.agent.run.identity import identify
from ddptop.agent.run.rundir import RANK_VARIABLE

CHILD = """
from ddptop import agent
agent.start(note="the child's")
agent.log(x=1)
print("child", agent._listener)
"""

PARENT = """
import os, subprocess, sys
with open("child.py", "w") as file:
    file.write({child!r})
done = subprocess.run([sys.executable, {words}"child.py"])
folder = os.environ["DDPTOP_RUN_DIR"]
print(done.returncode, sorted(name for name in os.listdir(folder) if name.startswith("0.")), flush=True)
sys.exit(3)
"""


@pytest.mark.parametrize("words", ["", "'-m', 'ddptop.agent', "])
def test_a_child_of_a_rank_leaves_the_rank_alone(rank, monkeypatch, words):
    """Under the runner or not it trains without the agent; sockets, log and record stay the rank's."""
    monkeypatch.chdir(rank.folder)
    done = rank.run(PARENT.format(child=CHILD, words=words))
    assert done.returncode == 3, done.stderr
    lines = rank.log.splitlines()
    assert lines[-2:] == ["child None", "0 ['0.cmd', '0.pub']"]
    assert sum("no agent in this process" in line for line in lines) == bool(words)
    assert rank.member.ended.exit_code == 3
    assert rank.member.ended.pid == rank.member.process.pid


def test_a_script_that_replaces_itself_stays_the_rank(rank):
    """By `exec` it is the same process, whatever stands in its environment."""
    again = "import os, sys\nif 'AGAIN' not in os.environ:\n    os.environ['AGAIN'] = ''\n"
    again += "    os.execv(sys.executable, [sys.executable, '-m', 'ddptop.agent', *sys.argv])\nsys.exit(5)\n"
    assert rank.run(again).returncode == 5
    assert rank.member.ended.exit_code == 5


def test_who_is_above() -> None:
    """A live process other than this one, by number and start; nobody where the text is no such thing."""
    own = identify(os.getpid())
    assert own is not None

    def above(text: str) -> int | None:
        found = ancestry.rank_above({RANK_VARIABLE: text})
        return None if found is None else found.pid

    with started(*WAITING) as other:
        there = identify(other.pid)
        assert there is not None
        told = f"{there.pid} {there.started!r} {there.namespace}"
        assert above(told) == there.pid
        assert above(f"{there.pid} {there.started + 5} {there.namespace}") is None
    assert above(told) is None
    assert above(f"{own.pid} {own.started} {own.namespace}") is None
    for text in ("", "x", "1", "-4 0.0 x", "1 nan x", f"{1 << 40} 1.0 x", "9" * 9999, "\udcff 1 1"):
        assert above(text) is None, text


def test_a_run_that_a_rank_launches_is_a_run_of_its_own(rank, monkeypatch):
    """Its ranks do not find the rank that launched it in their environment."""
    monkeypatch.setenv(RANK_VARIABLE, "1 1.0 1")
    seen: list[str] = []

    def started(*_: object, env: dict[str, str], **__: object) -> _Child:
        seen.extend(env)
        return _Child()

    monkeypatch.setattr(subprocess, "Popen", started)
    launcher.Torchrun.start(rank.directory, rank.directory.read())
    assert rundir.MARKER in seen
    assert RANK_VARIABLE not in seen


class _Child:
    pid = os.getpid()


SPAWNED = """
import os, subprocess, sys
from ddptop.agent.rank.process import spawned
rank = spawned.Rank()
rank.joins({"rank": 0, "world_size": 1})
if "CHILD" not in os.environ:
    subprocess.run([sys.executable, sys.argv[0]], env={**os.environ, "CHILD": "1"}, check=True)
    folder = os.environ["DDPTOP_RUN_DIR"]
    print(sorted(name for name in os.listdir(folder) if name.startswith("0.")), flush=True)
print("agent" if rank._session else "none", flush=True)
"""


def test_a_child_of_a_spawned_rank_leaves_the_rank_alone(rank):
    """It joins a group of its own by the rank's number, and says nothing at all."""
    done = rank.run(SPAWNED, plain=True)
    assert done.returncode == 0, done.stderr
    assert rank.log.splitlines() == ["none", "['0.cmd', '0.pub']", "agent"]


def test_the_environment_of_a_spawned_rank_stays_the_scripts(rank):
    """What a launcher would say in it is not said there by the agent: the script's own children read it."""
    body = SPAWNED.partition("if ")[0].replace('"rank": 0', '"rank": 1').replace('size": 1', 'size": 2')
    rank.directory.update(world=2)
    done = rank.run(
        "import os\nfor name in ('RANK', 'WORLD_SIZE'): os.environ.pop(name)\n" + body
        + "print([name for name in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE') if name in os.environ])\n", plain=True
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert rank.directory.rank_log(1).read_text() == "[]\n"
    member = rank.directory.members()[1]
    assert (member.rank, member.local_rank, member.world) == (1, 1, 2)


@pytest.mark.parametrize(("guessed", "seen"), [(False, []), (True, [0])])
def test_a_group_of_another_size_is_not_the_runs(rank, guessed, seen):
    """Where somebody has said how many ranks the run has; otherwise any group will do."""
    rank.directory.update(world=4, guessed=guessed)
    done = rank.run(SPAWNED.partition("if ")[0], plain=True)
    assert done.returncode == 0
    assert list(rank.directory.members()) == seen
    assert ("its group has world size 1, the run 4" in done.stderr) == (not guessed)


@pytest.mark.parametrize(
    ("ending", "code", "recorded", "state"),
    [
        ("sys.exit(3)", 3, None, "ended"),
        ("pass", 0, None, "ended"),
        ("raise ValueError('bad')", 1, 1, "failed"),
    ],
)
def test_an_exit_code_that_nobody_tells_is_none(rank, ending, code, recorded, state):
    """A rank that a script started as a plain process knows the code of an exception, and no other."""
    from ddptop.agent.run.states import Evidence, of_rank

    done = rank.run(SPAWNED.partition("if ")[0] + ending, plain=True)
    assert done.returncode == code
    ended = rank.member.ended
    assert ended.exit_code == recorded
    assert of_rank(Evidence(True, ended, False), 3.5) == state


@pytest.mark.parametrize(
    ("ending", "left_at"),
    [("sys.exit(0)", "script.py:3 leave"), ("sys.exit(3)", "script.py:3 leave"), ("pass", "")],
)
def test_the_line_of_an_exit_is_recorded(rank, ending, left_at):
    """Who left is found by it, in order or not; an end of the script has no line."""
    done = rank.run(f"import sys\ndef leave():\n    {ending}\nleave()\n")
    assert done.returncode == (3 if "3" in ending else 0)
    assert rank.member.ended.left_at == left_at


def test_a_process_of_multiprocessing_tells_its_exit_code() -> None:
    """There it is known: by the exception that the process ends with, whose line is known, too."""
    from ddptop.agent.rank.process import spawned

    closed: list[object] = []

    class Session:
        owner, faults = os.getpid(), Faults()

        def close(self, *told: object) -> None:
            closed.append(told[0])
            lines.append(told[-1])

    lines: list[object] = []
    for failure in (None, SystemExit(3), SystemExit(0), SystemExit("bad"), ValueError("x")):
        found = spawned.Rank(Session())  # type: ignore[arg-type]
        with contextlib.suppress(BaseException):
            if failure is not None:
                raise failure
        found.ends(failure)
    assert closed == [0, 3, 0, 1, 1]
    assert isinstance(failure, ValueError)
    assert lines[-1] is failure.__traceback__ is not None
