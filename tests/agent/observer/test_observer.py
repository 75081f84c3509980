"""A launched run from its first process to its last."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import zmq
from support.harness import DEADLINE_S, WAIT, carriers, until
from support.processes.supervised import events, over, running

from ddptop.agent import wire
from ddptop.agent.client.acting import unobserved
from ddptop.agent.client.host.settings import Settings
from ddptop.agent.client.runs import Run
from ddptop.agent.end import survey
from ddptop.agent.launcher import launcher
from ddptop.agent.record import recording
from ddptop.agent.run import hosts
from ddptop.agent.run.rundir import RunDir, identify, is_alive
from ddptop.tui.cli import view

Launch = Callable[..., RunDir]
STEPS: Final = """
import time
from ddptop import agent
session = agent._listener
while True:
    session.end_step()  # as the hooks do at each step, so that the test needs no torch
    session.count()
    time.sleep(0.02)
"""
UP: Final = ["rank 0 is up", "rank 1 is up"]


def left(directory: RunDir) -> list[str]:
    """Return the sockets, locks and write-ahead logs in the run directory."""
    return [
        path.name for path in directory.path.iterdir() if path.suffix in (".pub", ".cmd") or path.name == "lock"
    ] + [path.name for path in directory.path.glob("run.db-*")]


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    """A context for the test's own sockets."""
    with zmq.Context() as made:
        yield made


class Controller:
    """A DEALER that speaks to the observer."""

    def __init__(self, context: zmq.Context[Any], directory: RunDir) -> None:
        """Connect."""
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(directory.address("observer", "cmd"))

    def ask(self, command: wire.Command, seconds: float = DEADLINE_S) -> wire.Reply:
        """Send a command and return its reply."""
        self.socket.send(wire.encode(command))
        assert self.socket.poll(int(seconds * 1000)), "no reply"
        answer = wire.read_answer(self.socket.recv())
        assert isinstance(answer, wire.Reply)
        return answer


def test_real_torchrun_carries_the_arguments_and_finishes(launch: Launch, tmp_path: Path) -> None:
    """Arguments that torchrun could take for its own arrive as they are; the end leaves a record and no trace."""
    arguments = ("--lr", "0.1", "-h", "", "a b", "--", "--nproc-per-node=9", "-m", "x\ny", "ünï", "--standalone")
    directory = launch(
        "import json, os, sys; open('argv' + os.environ['RANK'], 'w').write(json.dumps(sys.argv[1:]))",
        command=launcher.command("script.py", arguments, 2),
    )
    run_id = directory.read().run_id
    end = over(directory)
    assert (end.state, end.exit_code, end.dead) == ("finished", 0, (0, 1))
    for rank in (0, 1):
        assert tuple(json.loads((tmp_path / f"argv{rank}").read_text())) == arguments
    assert {"rank 0 finished", "rank 1 finished", "run finished"} <= set(events(directory))
    assert left(directory) == []
    assert carriers(run_id) == []


def test_real_torchrun_names_the_signal_that_killed_a_rank(launch: Launch, tmp_path: Path) -> None:
    """A rank that is gone without a word is the cause, not the peer whose connection broke."""
    os.mkfifo(tmp_path / "line")
    directory = launch(
        "import os, signal\n"
        "if os.environ['RANK'] == '1':\n"
        "    line = open('line', 'w')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "open('line').read()  # ends when the writer dies\n"
        "raise RuntimeError('Connection closed by peer')",
        command=launcher.command("script.py", (), 2),
    )
    end = over(directory)
    assert (end.state, end.exit_code, end.cause_rank) == ("failed", 128 + signal.SIGKILL, 1)
    assert end.cause is not None
    assert end.cause.startswith("rank 1 was killed by SIGKILL (")


def test_a_failure_is_told_before_the_other_ranks_have_ended(launch: Launch) -> None:
    """With what the script has printed, to who waits for the start; torchrun waits for a rank that ignores SIGTERM."""
    directory = launch(
        "import os, signal, sys, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    open('ready', 'w').close()\n"
        f"    {WAIT}\n"
        "while not os.path.exists('ready'): time.sleep(0.01)\n"
        "print('usage: script.py\\nscript.py: error: unrecognized arguments: 2', file=sys.stderr)\n"
        "sys.exit(2)"
    )
    assert view.await_start(Run(directory), Settings(), lambda _: None) == "rank 0: unrecognized arguments: 2"
    assert 1 in survey.look(directory).alive
    assert "rank 0's script ended with exit code 2: unrecognized arguments: 2" in events(directory)


def test_torchrun_that_cannot_start(launch: Launch, tmp_path: Path) -> None:
    """Without ranks, the run fails with what torchrun said last, or with why it could not be started."""
    silent = launch("", command=(sys.executable, "-m", "no_such_module"))
    absent = launch("", command=(str(tmp_path / "no-such-program"),))
    assert "No module named no_such_module" in (over(silent).cause or "")
    assert "could not be started" in (over(absent).cause or "")
    assert (silent.read().state, absent.read().state) == ("failed", "failed")


def test_kill_leaves_nothing(launch: Launch, context: zmq.Context[Any]) -> None:
    """Helpers that ignore TERM included: no process, socket or lock is left when the reply comes."""
    directory = launch(
        "import subprocess, sys, time\n"
        f"deaf = 'import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); {WAIT}'\n"
        "helper = subprocess.Popen([sys.executable, '-c', deaf], stdout=subprocess.PIPE, start_new_session=True)\n"
        f"helper.stdout.readline(); open('up-' + __import__('os').environ['RANK'], 'w').close(); {WAIT}"
    )
    run = directory.read()
    running(directory)
    until(lambda: all((Path(run.cwd) / f"up-{rank}").exists() for rank in (0, 1)), "the helpers are up")
    news = context.socket(zmq.SUB)
    news.linger = 0
    news.subscribe(wire.TOPIC_RUN)
    news.connect(directory.address("observer", "pub"))
    controller = Controller(context, directory)
    assert news.poll(1000 * DEADLINE_S), "a frame is on the air"
    reply = controller.ask(wire.Kill(7, 0.3, who="a\x1b[31mda"))
    assert reply == wire.Reply(7, True, "2 ranks and 2 helpers ended, 0 left")
    assert carriers(run.run_id) == []
    assert left(directory) == []
    end = survey.look(directory)
    assert (end.state, end.cause, end.alive) == ("killed", "killed by ada", ())
    states: list[str] = []
    while "killed" not in states:
        assert news.poll(1000 * DEADLINE_S)
        message = wire.read_frame(news.recv_multipart()[1])
        assert isinstance(message, wire.RunFrame)
        states.append(message.state)
    assert "killing" in states
    controller.socket.close()
    news.close()


def test_killing_one_rank_says_who_did_it(launch: Launch, context: zmq.Context[Any]) -> None:
    """The end of one rank on request ends the run, and the cause is the request."""
    directory = launch(WAIT)
    running(directory)
    controller = Controller(context, directory)
    assert not controller.ask(wire.Kill(1, 1.0, rank=5)).done
    reply = controller.ask(wire.Kill(2, 1.0, rank=1, who="ada"))
    assert reply.done
    assert reply.text.startswith("rank 1: 1 rank ended, 0 left")
    end = over(directory)
    assert (end.state, end.cause_rank, end.cause) == ("failed", 1, "rank 1 was killed by ada")
    controller.socket.close()


def test_garbage_is_counted_and_other_commands_are_refused(launch: Launch, context: zmq.Context[Any]) -> None:
    """A thousand messages of noise change a number; then the observer still answers."""
    directory = launch(WAIT)
    running(directory)
    controller = Controller(context, directory)
    for number in range(1000):
        controller.socket.send(bytes([number % 256]) * (number % 60))
    controller.socket.send_multipart([b"", wire.encode(wire.Kill(1, 0.0))])
    for command in (wire.Resume(2), wire.Kill(3, float("nan")), wire.Kill(4, -1.0)):
        reply = controller.ask(command)
        assert (reply.id, reply.done) == (command.id, False)
    news = context.socket(zmq.SUB)
    news.linger = 0
    news.subscribe(wire.TOPIC_RUN)
    news.connect(directory.address("observer", "pub"))
    refused = 0
    while refused < 1001:
        assert news.poll(1000 * DEADLINE_S)
        frame = wire.read_frame(news.recv_multipart()[1])
        assert isinstance(frame, wire.RunFrame)
        refused = frame.refused
    assert refused == 1001
    assert survey.look(directory).alive == (0, 1)
    controller.socket.close()
    news.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_end_of_the_observer_leaves_the_training(launch: Launch, number: int) -> None:
    """Told to go or killed, it takes nobody along; the run can still be counted and killed."""
    directory = launch(WAIT)
    running(directory)
    run = directory.read()
    assert run.observer
    os.kill(run.observer.pid, signal.SIGHUP)
    os.kill(run.observer.pid, number)
    until(lambda: not is_alive(run.observer), "the observer has gone")
    now = survey.settle(directory)
    assert (now.state, now.supervised, now.orphaned, now.alive) == ("running", False, False, (0, 1))
    assert ("observer.cmd" in left(directory)) == (number == signal.SIGKILL)
    assert unobserved.kill(directory, "ada", 1.0, lambda line: None) == "2 ranks ended, 0 left"
    assert carriers(run.run_id) == []
    assert survey.look(directory).state == "killed"
    assert [name for name in left(directory) if not name.startswith("run.db")] == []


def test_orphans_are_seen_and_ended(launch: Launch, context: zmq.Context[Any]) -> None:
    """After kill -9 of torchrun the ranks go on under observation, are called orphans, and a kill ends them."""
    directory = launch(WAIT)
    running(directory)
    run = directory.read()
    torchrun = run.torchrun
    assert torchrun
    os.kill(torchrun.pid, signal.SIGKILL)
    until(lambda: identify(torchrun.pid) is None, "torchrun has gone")
    until(lambda: any("go on without it" in text for text in events(directory)), "the event")
    now = survey.look(directory)
    assert (now.state, now.supervised, now.orphaned, now.alive) == ("running", True, True, (0, 1))
    controller = Controller(context, directory)
    assert controller.ask(wire.Kill(1, 1.0)).text == "2 ranks ended, 0 left"
    assert carriers(run.run_id) == []
    assert survey.look(directory).state == "killed"
    controller.socket.close()


def test_what_outlives_the_run_is_ended(launch: Launch) -> None:
    """A child that a finished script has left behind goes with the run."""
    directory = launch(
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {WAIT!r}], start_new_session=True)"
    )
    run_id = directory.read().run_id
    assert over(directory).state == "finished"
    assert carriers(run_id) == []
    assert "left behind by the run: 2 helpers ended, 0 left" in events(directory)


def test_ranks_that_count_anew_are_the_same_ranks(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another host has seen more starts of the group: they go over to its number, are followed there, and nothing is
    told to have been started again.
    """
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    directory = launch(STEPS)
    running(directory)

    def steps(generation: int) -> dict[int, int]:
        found = [each for each in recording.read_steps(directory.database, 100) if isinstance(each, wire.Steps)]
        return {each.rank: each.steps[-1].step for each in found if each.generation == generation}

    until(lambda: len(steps(0)) == 2, "steps of both ranks are recorded")
    before = steps(0)
    hosts.write_starts(directory.path, 3)
    until(lambda: all(steps(3).get(rank, 0) > step + 20 for rank, step in before.items()), "later ones")
    assert {member.generation for member in directory.members().values()} == {3}
    told = events(directory)
    assert [text for text in told if re.match("restart|rank . (ended|was)", text)] == []
    assert [text.partition(" (")[0] for text in told if "is up" in text] in (UP, UP[::-1])
