"""A kill is carried out also where the observer stands still, once, and never later than it was asked for."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from support.harness import WAIT, carriers, ddptop, until

from ddptop.agent import wire
from ddptop.agent.client.acting.control import RunControl
from ddptop.agent.control import deadline
from ddptop.agent.end import survey
from ddptop.agent.record import recording
from ddptop.agent.run.identity import is_stopped
from ddptop.agent.run.rundir import Process, RunDir, is_alive
from ddptop.tui.link.source import Refused

Launch = Callable[..., RunDir]

TOO_LATE = r"came too late: asked \d+ s ago; nothing was done"


def observer_of(directory: RunDir) -> Process:
    """Wait until the run is running, and return who looks after it."""
    until(lambda: directory.read().state == "running", "the run is running")
    found = directory.read().observer
    assert found
    return found


@contextlib.contextmanager
def stopped(process: Process) -> Iterator[None]:
    """Stop a process, and let it go on with the block's end."""
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: is_stopped(process), "the process stands still")
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)


def told(directory: RunDir) -> list[str]:
    """Return the texts of the recorded events."""
    return [event.text for event in recording.newest_events(directory.database, 100)]


def control(directory: RunDir) -> RunControl:
    """Return what acts on a run for a user."""
    return RunControl(directory, directory.read(), "ada")


def kill(directory: RunDir, grace_s: float = 1.0, rank: int | None = None) -> str:
    """Kill a run, or one rank of it, and say what was ended."""
    return control(directory).kill(grace_s, rank, lambda line: None)


def test_a_stopped_observer_is_continued_by_whoever_asks(launch: Launch) -> None:
    """It ends the run as any other; also where it is stopped within the grace period."""
    directory = launch(f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAIT}")
    observer = observer_of(directory)
    run = directory.read()
    lines: list[str] = []

    def again() -> None:
        until(lambda: directory.read().killed_by, "the observer is at it")
        os.kill(observer.pid, signal.SIGSTOP)

    with stopped(observer):
        stopping = threading.Thread(target=again)
        stopping.start()
        assert control(directory).kill(2.0, None, lines.append) == "2 ranks ended, 0 left"
        stopping.join()
    assert carriers(run.run_id) == []
    assert "kill requested · ada" in lines
    until(lambda: not is_alive(observer), "the observer has gone")
    end = directory.read()
    assert (end.state, end.cause) == ("killed", "killed by ada")
    assert not (directory.path / "lock").exists()
    assert not [text for text in told(directory) if "failed" in text or "SIGTERM (" in text]


def test_a_kill_at_which_the_observer_is_killed_goes_on(launch: Launch) -> None:
    """Whoever has asked starts its successor, which finds in the record what was begun, and answers."""
    directory = launch(f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAIT}")
    observer = observer_of(directory)
    lines: list[str] = []

    def lose() -> None:
        until(lambda: directory.read().killed_by, "the observer is at it")
        os.kill(observer.pid, signal.SIGKILL)

    losing = threading.Thread(target=lose)
    losing.start()
    assert control(directory).kill(2.0, None, lines.append) == "2 ranks ended, 0 left"
    losing.join()
    assert carriers(directory.read().run_id) == []
    assert "its observer ended meanwhile; another one goes on" in lines
    assert (directory.read().state, directory.read().cause) == ("killed", "killed by ada")


def test_ranks_that_exit_with_0_on_a_kill_were_killed(launch: Launch, tmp_path: Path) -> None:
    """A script may handle SIGTERM, as Lightning does: its ranks have not finished."""
    directory = launch(
        "import os, signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        f"open('up-' + os.environ['RANK'], 'w').close(); {WAIT}"
    )
    until(lambda: all((tmp_path / f"up-{rank}").exists() for rank in (0, 1)), "both ranks have begun")
    assert kill(directory, 60.0) == "2 ranks ended, 0 left"
    until(lambda: directory.read().state == "killed", "the run is over")
    assert [member.ended and member.ended.exit_code for member in directory.members().values()] == [0, 0]
    for verb in ("status", "report"):
        ranks = json.loads(ddptop(verb, directory.name, "--json").stdout)["ranks"]
        assert [rank["state"] for rank in ranks] == ["killed", "killed"]


def test_a_command_that_is_read_late_is_refused_and_told(launch: Launch) -> None:
    """After SIGCONT the observer reads what waited for it, does none of it, and says who had asked."""
    directory = launch(WAIT)
    observer = observer_of(directory)
    run = directory.read()
    with zmq.Context() as context, context.socket(zmq.DEALER) as asking:
        asking.linger = 0
        asking.connect(directory.address("observer", "cmd"))
        with stopped(observer):
            whole = wire.Kill(1, 1.0, who="ada")
            for command in (whole, wire.Kill(2, 1.0, rank=1, who="bob"), wire.Kill(3, 0.0, who="eve", signal=9)):
                asking.send(wire.encode(deadline.limited(command, 0.05)))
            sent = deadline.now_ns()
            until(lambda: deadline.now_ns() > sent + 2 * 10**8, "the deadline is over")
        for number in (1, 2, 3):
            assert asking.poll(60_000)
            reply = wire.read_answer(asking.recv())
            assert isinstance(reply, wire.Reply)
            assert (reply.id, reply.done) == (number, False)
            assert re.fullmatch(TOO_LATE, reply.text)
        until(lambda: sum("came too late" in text for text in told(directory)) == 3, "the events")
        assert any(re.fullmatch(f"kill of rank 1 refused: {TOO_LATE} · bob", text) for text in told(directory))
        assert (directory.read().state, directory.read().killed_by) == ("running", None)
        assert len(carriers(run.run_id)) == 3, "torchrun and both ranks live"
        # An older onlooker knows no deadline, and is obeyed whenever it is read.
        with stopped(observer):
            asking.send(wire.encode(wire.Kill(4, 1.0, who="old")))
            time.sleep(0.2)  # the longer the later
        assert asking.poll(60_000)
        reply = wire.read_answer(asking.recv())
        assert isinstance(reply, wire.Reply)
        assert reply.done
    assert carriers(run.run_id) == []


def test_each_kill_of_a_part_leaves_its_outcome(launch: Launch) -> None:
    """Who asked for the end of one rank and what came of it is an event, also where it was refused."""
    directory = launch(WAIT)
    observer_of(directory)
    with pytest.raises(Refused, match="not in this run"):
        kill(directory, rank=7)
    until(lambda: any("kill of rank 7 refused: rank 7: not in this run" in t for t in told(directory)), "why")
    kill(directory, rank=1)
    wanted = "kill of rank 1: 1 rank ended, 0 left"
    until(lambda: any(text.startswith(wanted) for text in told(directory)), "the outcome")


LINGERS = """
import os, signal, threading
import ddptop.agent as agent
def upload():
    threading.Event().wait()
agent.start()
if os.environ["RANK"] == "1":
    threading.Thread(target=upload, name="uploader").start()
    raise ValueError("label 1000 is out of range")
signal.pause()
"""


def test_a_failed_run_that_is_killed_keeps_its_cause(launch: Launch) -> None:
    """A thread keeps the process of the rank that has failed: that is told, and the kill only clears it up."""
    directory = launch(LINGERS)
    observer = observer_of(directory)
    waits = "its process waits at exit for thread uploader (script.py:5)"
    until(lambda: f"rank 1's script has failed; {waits}" in told(directory), "what keeps the process")
    until(lambda: waits in str(survey.look(directory).cause or survey.look(directory).run.cause), "the cause says it")
    assert kill(directory) == "2 ranks ended, 0 left"
    until(lambda: not is_alive(observer), "the observer has gone")
    end = directory.read()
    assert (end.state, end.cause_rank, end.cause_kind) == ("failed", 1, "exception")
    assert end.cause == "rank 1: ValueError: label 1000 is out of range; then killed by ada"
