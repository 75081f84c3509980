"""A real run under the command line: steps, checkpoints, freezing, stopping, and who did it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.harness import carriers, ddptop, status
from support.processes.obedient import Job


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Job:
    """A run that goes on until the last test that uses it stops it."""
    return Job(tmp_path_factory.mktemp("obedient"), "obedient")


def test_steps_are_exact(job):
    """From a pause, K steps are K steps on every rank, by the script's own count."""
    assert "not paused; pause it first" in ddptop("step", job.name).stderr
    assert ddptop("pause", job.name).returncode == 0
    for steps in ("1", "7", "1"):
        before = job.counts()
        done = ddptop("step", job.name, steps)
        assert (done.returncode, f"after {steps} step" in done.stdout) == (0, True), done.stderr
        assert job.counts() == [count + int(steps) for count in before]
        assert len(set(job.counts())) == 1
    assert ddptop("step", job.name, "0").returncode == 2
    assert ddptop("resume", job.name).returncode == 0
    job.goes_on()


def test_a_checkpoint_is_saved_by_all_at_one_step(job):
    """Where it was saved is told; what the function raises is told with its rank, and the run goes on."""
    done = ddptop("checkpoint", job.name)
    assert done.returncode == 0, done.stderr
    assert f"saved in {job.folder / 'checkpoint-0'} (" in done.stdout
    saved = {(job.folder / f"checkpoint-{rank}").read_text() for rank in range(2)}
    (text,) = saved
    step, count = text.split()
    assert step == count
    job.goes_on()
    (job.folder / "fail").touch()
    for verb in ("checkpoint", "stop"):
        refused = ddptop(verb, job.name)
        assert refused.returncode == 1
        assert "no checkpoint, the run goes on: rank 1: OSError: the disk is full" in refused.stderr
        job.goes_on()
    (job.folder / "fail").unlink()


def test_a_frozen_run_stands_and_goes_on(job):
    """No process of it runs, status says so, and no other action gets between."""
    done = ddptop("pause", job.name, "--freeze")
    assert done.returncode == 0, done.stderr
    assert "frozen: 2 ranks got SIGSTOP; a collective in progress fails after 30 s" in done.stdout
    for rank in status(job.name)["ranks"]:
        assert "State:\tT" in Path(f"/proc/{rank['pid']}/status").read_text()
        assert rank["state"] == "frozen"
    assert "resume it first" in ddptop("pause", job.name).stderr
    assert ddptop("resume", job.name).returncode == 0
    job.goes_on()


def test_every_action_is_kept_with_who_did_it(job):
    """Also what was refused; the events of the tests above are there, in order."""
    events = json.loads(ddptop("events", job.name, "--json").stdout)
    acted = [event for event in events if event["action"]]
    assert all("shell" in event["who"] and event["text"].endswith(f" · {event['who']}") for event in acted)
    actions = [event["action"] for event in acted]
    assert actions[:7] == ["launch", "step 1", "pause", "step 1", "step 7", "step 1", "resume"]
    assert {"checkpoint", "stop", "freeze"} < set(actions)
    (failed,) = (event for event in acted if event["action"] == "stop")
    assert (failed["level"], "the disk is full" in failed["text"]) == ("warning", True)
    # More may have happened by now: the run lives.
    lines = ddptop("events", job.name).stdout.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines)
    assert all(any(line.endswith(event["text"]) for line in lines) for event in events)


def test_a_stop_ends_in_order(job):
    """After a checkpoint, at one step, with `finally` and `atexit`, exit code 0, and a state of its own."""
    run_id = job.directory.read().run_id
    done = ddptop("stop", job.name)
    assert done.returncode == 0, done.stderr
    assert f"saved in {job.folder / 'checkpoint-0'}" in done.stdout
    steps = job.counts()
    assert steps[0] == steps[1] == int((job.folder / "checkpoint-0").read_text().split()[0])
    for what in ("finally", "atexit"):
        assert [(job.folder / f"{what}-{rank}").exists() for rank in range(2)] == [True, True]
    end = status(job.name)
    assert (end["state"], end["exit_code"]) == ("stopped", 0)
    assert end["cause"].startswith("stopped by ")
    assert "shell" in end["cause"]
    assert [rank["state"] for rank in end["ranks"]] == ["stopped", "stopped"]
    assert carriers(run_id) == []
    events = json.loads(ddptop("events", job.name, "--json").stdout)
    stop = [event for event in events if event["action"] == "stop"][-1]
    assert stop["text"].startswith(f"stopped at step {steps[0]:,}, saved in ")
    assert stop["text"].endswith(f" · {stop['who']}")
    assert "is over (stopped)" in ddptop("pause", job.name).stderr
