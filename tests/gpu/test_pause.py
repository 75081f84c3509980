"""A pause three times as long as the timeout of the collectives: nothing times out, and the training goes on."""

from __future__ import annotations

import time
from pathlib import Path

from support.gpu import devices
from support.gpu.jobs import PROGRAMS, environment
from support.harness import ddptop, status, until

from ddptop.agent.run import rundir


def test_a_pause_outlasts_the_timeout_of_collectives(own_base: Path, monkeypatch) -> None:
    """Held at one step for 60 s with a timeout of 20 s; then the same step goes on, and the run ends well."""
    kind = devices.device()
    cpu = kind == "cpu"
    # A rehearsal is to be short; the proportion is the same.
    timeout_s, pause_s = (4.0, 12.0) if cpu else (20.0, 60.0)
    world = 2 if cpu else max(1, min(4, devices.count()))
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    backend = "gloo" if cpu else "nccl"
    options = ["--device", str(kind), "--backend", backend, "--timeout", str(timeout_s), "--out", "/tmp"]
    script = str(PROGRAMS / "pausing.py")
    launched = ddptop(
        "launch", "--world", str(world), "--name", "held", "--detach", script, "--", *options, "--steps", "800"
    )
    assert launched.returncode == 0, launched.stderr
    until(lambda: (status("held")["step"] or 0) > 20, "some steps")
    assert ddptop("pause", "held").returncode == 0
    began, at = time.monotonic(), status("held")["step"]
    until(lambda: time.monotonic() - began > pause_s, "the pause", pause_s + 5)
    told = status("held")
    assert {rank["state"] for rank in told["ranks"]} == {"paused"}
    assert told["step"] == at
    assert ddptop("resume", "held").returncode == 0
    until(lambda: rundir.find("held").read().state == "finished", "the end of the run")
    directory = rundir.find("held")
    written = "".join(path.read_text() for path in sorted(directory.path.rglob("*.log")))
    assert written.count("has trained to its end") == world, written
