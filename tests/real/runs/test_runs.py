"""A real run of two ranks that is held for long, sent garbage, and started again by torchrun."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest
import zmq
from support.harness import ddptop, status, until, write_script
from support.processes.ranks import observed
from support.processes.scripts import TRAIN, UNTIDY
from support.values.watches import watched

from ddptop.agent.client.watch import Watch
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.run.switches import recording


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the scripts."""
    path = tmp_path_factory.mktemp("scripts")
    write_script(path, TRAIN)
    return path


@pytest.fixture(scope="module")
def live(folder) -> RunDir:
    """A run that goes on until it is killed by the last test that uses it; shared by the tests below."""
    options = ("--world", "2", "--name", "long", "--max-restarts", "1", "--detach")
    with pytest.MonkeyPatch.context() as monkeypatch:
        # A rank that gets little of a core records fewer steps than it makes, and its history is compared with them.
        monkeypatch.setenv(recording.VARIABLE, "1")
        done = ddptop("launch", *options, "train.py", "--", "1000000", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "long\n"
    directory = rundir.find("long")
    until(lambda: (status("long")["step"] or 0) > 5, "the first steps")
    return directory


def polled(link: Watch) -> Watch:
    """Return the link after it has heard what there is."""
    link.poll()
    return link


def test_a_pause_holds_all_ranks_at_one_step_longer_than_the_collective_timeout(live, folder):
    """Held for 6 s with a timeout of 4 s: nobody moves, nobody dies, and the run goes on."""
    impatient = folder / "impatient"
    impatient.touch()
    before = status("long")["step"]
    until(lambda: status("long")["step"] > before + 5, "steps with the short timeout")
    assert ddptop("pause", "long").returncode == 0
    held = status("long")
    assert held["state"] == "paused"
    assert {rank["step"] for rank in held["ranks"]} == {held["step"]}
    again = ddptop("pause", "long")
    assert (again.returncode, "already paused" in again.stderr) == (1, True)
    deadline = time.monotonic() + 6
    until(lambda: time.monotonic() > deadline, "6 s to pass")
    assert status("long")["step"] == held["step"]
    assert ddptop("resume", "long").returncode == 0
    until(lambda: status("long")["step"] > held["step"] + 5, "steps after the pause")
    impatient.unlink()
    refused = ddptop("resume", "long")
    assert (refused.returncode, "not paused" in refused.stderr) == (1, True)


def test_twenty_pauses_in_a_row_end_at_a_common_step(live):
    """However the ranks stand when asked, they are held at the same step."""
    link = watched(live)
    try:
        for _ in range(20):
            _await(link, {("paused", int(link.control.pause().split()[3].replace(",", "")))})
            link.control.resume()
    finally:
        link.close()


def _await(link: Watch, situation: set[tuple[str, int | None]]) -> None:
    def seen() -> bool:
        link.poll()
        return {(rank.state, rank.step) for rank in link.frame().ranks} == situation

    until(seen, f"all ranks to be {situation}")


def test_garbage_is_refused_counted_and_shown(live):
    """1,000 random messages to every socket of the run: training goes on, and status counts them."""
    before = status("long")
    seed = random.Random(9)
    addresses = list(live.path.glob("*.cmd")) + list(live.path.glob("*.pub"))
    assert len(addresses) == 6
    with zmq.Context() as context:
        senders = []
        for address in addresses:
            sender = context.socket(zmq.DEALER if address.suffix == ".cmd" else zmq.XSUB)
            senders.append(sender)
            sender.connect(f"ipc://{address}")
            for _ in range(1000):
                sender.send(b"\x7f" + seed.randbytes(seed.randrange(1, 300)))
        until(lambda: status("long")["refused"] >= before["refused"] + 3000, "the messages to be counted")
        for sender in senders:
            sender.close(linger=0)
    until(lambda: status("long")["step"] > before["step"] + 10, "steps after the garbage")
    until(lambda: all(rank["state"] == "running" for rank in status("long")["ranks"]), "all ranks to be heard")


def test_a_restarted_group_is_followed(live, folder):
    """Torchrun starts the ranks anew after rank 1 has failed: history, cause and control go on."""
    (folder / "flaky").touch()
    until(lambda: [m.generation for m in live.members().values()] == [1, 1], "the second generation")
    (folder / "flaky").unlink()
    until(lambda: len(status("long")["ranks"]) == 2 and (status("long")["step"] or 0) > 3, "its steps")
    link = watched(live, looks_back=True)
    try:
        until(lambda: polled(link).frame().step, "the picture")
        shown_frame = link.frame()
        history = shown_frame.history
        assert history is not None
        until(lambda: polled(link) and len(history.by_step.read(0, "loss").steps), "its losses")
        until(lambda: polled(link) and history.by_step.complete, "all of them")
        losses = history.by_step.read(0, "loss")
    finally:
        link.close()
    (restart,) = shown_frame.restarts
    assert restart.generation == 1
    cause = r"restart 1 of 1: rank 1: RuntimeError: once, in step (\d+)"
    (told,) = (found for event in shown_frame.events if (found := re.fullmatch(cause, event.text)))
    assert restart.step == pytest.approx(int(told[1]), abs=1)
    # Rank 0, which torchrun ended, may have taken its last step with it: ranks publish ten times a second.
    assert losses.steps[-1] - 1 <= losses.count.sum() <= losses.steps[-1]
    assert losses.steps[-1] > restart.step
    assert ddptop("pause", "long").returncode == 0
    assert ddptop("resume", "long").returncode == 0


def test_a_script_that_leaves_its_group_behind_ends_as_without_the_agent(tmp_path):
    """Our hooks are off the process group before torch tears it down: no crash after the last line."""
    with observed("untidy", write_script(tmp_path, UNTIDY), world=1) as (_, ranks):
        # torch itself sometimes ends with -6 here, with and without the agent.
        assert ranks.wait() in (0, -6), ranks.said
    assert "trained" in ranks.said
