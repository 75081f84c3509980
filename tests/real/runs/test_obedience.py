"""A run that goes on, or ends in order, whatever becomes of the observer, and whoever asks."""

from __future__ import annotations

import json
import os
import signal

import pytest
import zmq
from support.harness import DEADLINE_S, carriers, ddptop, status, until
from support.processes.obedient import Job

from ddptop.agent import wire
from ddptop.agent.control import caller
from ddptop.agent.wire.frames import ENDED


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A run that goes on until it is ended with all others."""
    return Job(tmp_path_factory.mktemp("obedient"), "steadfast")


def tell(job: Job, rank: int, *commands: wire.Command) -> list[wire.Reply]:
    """Send a rank commands as its observer does, and return the replies."""
    with zmq.Context() as context, caller.connect(context, zmq.DEALER, job.directory.address(rank, "cmd")) as socket:
        replies = []
        for command in commands:
            socket.send(wire.encode(command))
            assert socket.poll(int(DEADLINE_S * 1000)), "no reply"
            reply = wire.read_answer(socket.recv())
            assert isinstance(reply, wire.Reply)
            replies.append(reply)
        return replies


def test_an_observer_that_dies_between_two_messages_costs_nothing(job):
    """A hold that one rank alone has got for good is undone by whatever observer there is; the other's lease lapses."""
    promised = max(tell(job, rank, wire.Hold(1, "gone", 4_000))[0].step or 0 for rank in range(2))
    assert all(reply.done for reply in tell(job, 0, wire.Commit(2, "gone", promised), wire.Keep(3, "gone")))

    def is_held() -> bool:
        (reply,) = tell(job, 0, wire.Inspect(4, stacks=False))
        return reply.inspection is not None and reply.inspection.state == "paused"

    until(is_held, "a rank that is held")
    job.goes_on()
    undone = "an action was left half done, with only rank 0 held: all ranks go on"

    def said() -> bool:
        return undone in [each["text"] for each in json.loads(ddptop("events", job.name, "--json").stdout)]

    until(said, "the event")


def test_a_pause_outlives_its_observer(job):
    """Killed after it: the ranks stay held, status says so, and the next observer resumes them."""
    assert ddptop("pause", job.name).returncode == 0
    before = job.counts()
    os.kill(job.directory.read().observer.pid, signal.SIGKILL)
    until(lambda: status(job.name)["state"] == "paused", "the pause, by another observer")
    assert job.counts() == before
    assert ddptop("step", job.name, "2").returncode == 0
    assert job.counts() == [count + 2 for count in before]
    assert ddptop("resume", job.name).returncode == 0
    job.goes_on()


def test_a_term_from_outside_saves_and_stops(tmp_path):
    """With `--on-term checkpoint` the TERM of a scheduler to torchrun ends the run in order, at one step."""
    job = Job(tmp_path, "preempted", "--on-term", "checkpoint")
    run = job.directory.read()
    assert run.torchrun is not None
    os.kill(run.torchrun.pid, signal.SIGTERM)
    until(lambda: job.directory.read().state in ENDED, "the end")
    run = job.directory.read()
    assert (run.state, run.exit_code, run.cause) == ("stopped", 0, "stopped by SIGTERM")
    saved = {(tmp_path / f"checkpoint-{rank}").read_text() for rank in range(2)}
    assert saved == {f"{job.counts()[0]} {job.counts()[1]}"}
    assert [(tmp_path / f"atexit-{rank}").exists() for rank in range(2)] == [True, True]
    assert carriers(run.run_id) == []
