"""Ranks that live and cannot speak, and ranks that end before their run does: what a fresh onlooker says of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from subprocess import Popen
from typing import Any

import pytest
import zmq
from support.fakes.relay import relayed
from support.harness import WAIT, WAIT_LOCKED, until
from support.values.watches import watched

from ddptop.agent import wire
from ddptop.agent.client import look, runs
from ddptop.agent.record import recording
from ddptop.agent.run.files.private import seal
from ddptop.agent.run.rundir import Ended, Member, RunDir, identify
from ddptop.agent.wire.frames import ENDED
from ddptop.tui.cli.output import status

SCRIPT = f'''
"""Counts 60 steps without torch, as the hooks would; then rank 1 does what it is told to."""
import atexit, os, pathlib, time
from ddptop import agent

rank = os.environ["RANK"]
session = agent._listener
for _ in range(60):
    session.end_step()
    session.count()
    time.sleep(0.002)
deadline = time.monotonic() + 120
while time.monotonic() < deadline:
    time.sleep(0.05)
    if rank == "1" and pathlib.Path("lock").exists():
        # A foreign function that does not let go of the interpreter lock, as a long regular expression.
        {WAIT_LOCKED}
    if pathlib.Path("end").exists():
        # Whoever starts the ranks has not noticed yet.
        @atexit.register
        def wait():
            if rank == "1":
                {WAIT}
        break
'''


def told(directory: RunDir) -> dict[str, Any]:
    """Return what a fresh `status` says of a run, once a fresh `ps` has said the same."""
    own, listed = (look.frames(each, "the test") for each in ([runs.Run(directory)], runs.listed()))
    row = status.run_json(next(frame for frame in listed if frame.run == directory.name))
    found = status.as_json(own[0])
    states = {found["state"], row["state"]}
    assert len(states) == 1 or states == {"running", "stalled"}
    assert found["step"] == row["step"]
    assert row["restarts"] == 0
    return found


def until_recorded(directory: RunDir) -> None:
    """Wait until the observer has recorded the last step of both ranks."""

    def beats() -> bool:
        last = [beat for beat in recording.read_beats(directory.database) if isinstance(beat, wire.Beat)]
        return [beat.step for beat in last] == [60, 60]

    until(beats, "60 steps of both ranks are recorded")


@pytest.mark.parametrize(
    ("trouble", "state", "words"),
    [("SIGSTOP", "frozen", "stopped by SIGSTOP; last heard"), ("lock", "silent", "its process sleeps")],
)
def test_a_rank_that_cannot_speak(
    launch: Callable[..., RunDir], tmp_path: Any, trouble: str, state: str, words: str
) -> None:
    """It ran 60 steps and is stopped, or holds the interpreter lock: a fresh onlooker says so, with the step."""
    directory = launch(SCRIPT)
    until_recorded(directory)
    process = directory.members()[1].process
    if trouble == "SIGSTOP":
        os.kill(process.pid, signal.SIGSTOP)
    else:
        (tmp_path / "lock").touch()

    def noticed() -> dict[str, Any] | None:
        found = told(directory)
        assert found["ranks"][1]["state"] in ("running", state)
        assert [rank["step"] for rank in found["ranks"]] == [60, 60]
        return found if found["ranks"][1]["state"] == state else None

    found = until(noticed, f"a fresh status says {state}")
    assert isinstance(found, dict)
    assert words in found["ranks"][1]["activity"]
    # The other one waits for its next step, as it would in a collective.
    assert found["state"] in ("running", "stalled")
    os.kill(process.pid, signal.SIGKILL)


def test_an_end_that_its_rank_denies(new_run: Callable[..., RunDir], python: Callable[..., Popen[str]]) -> None:
    """A record of an end that somebody else wrote in a rank's name is not believed while the rank says it goes on."""
    directory = new_run(world=1, launched=False)
    process = identify(python(WAIT).pid)
    assert process is not None
    pub, cmd = directory.address(0, "pub"), directory.address(0, "cmd")
    ended = Ended(time.time_ns() - 5 * 10**9, 0)
    directory.write_member(Member(0, 0, 1, process, "host", 0, pub, cmd, None, ended))
    with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
        socket.bind(pub)
        seal(pub)

        def goes_on() -> bool:
            beat = wire.Beat(0, time.time_ns(), "running", "forward", 7, None, 0)
            socket.send_multipart([wire.TOPIC_BEAT, wire.encode(beat)])
            link.poll()
            frame = link.frame()
            return (frame.state, frame.ranks[0].state, frame.ranks[0].step) == ("running", "running", 7)

        with relayed(directory), watched(directory, onlooker=True) as link:
            until(goes_on, "the rank is believed")


def test_scripts_have_ended_and_their_run_has_not(launch: Callable[..., RunDir], tmp_path: Any) -> None:
    """A run whose scripts have ended is ending until whoever started them notices; then it is over."""
    directory = launch(SCRIPT)
    until_recorded(directory)
    (tmp_path / "end").touch()
    until(lambda: all(member.ended for member in directory.members().values()), "both scripts have ended")
    found = told(directory)
    assert (found["state"], found["step"]) == ("ending", 60)
    assert [(rank["state"], rank["step"]) for rank in found["ranks"]] == [("finished", 60)] * 2
    os.kill(directory.members()[1].process.pid, signal.SIGKILL)
    until(lambda: directory.read().state in ENDED, "the run is over")
    found = told(directory)
    assert found["state"] in ENDED
    assert found["step"] == 60
