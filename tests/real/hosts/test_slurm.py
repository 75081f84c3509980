"""A real Slurm on two hosts: the manual's scripts as they stand there, from sbatch to scancel and requeue."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import Cluster
from support.harness import DDPTOP, LIGHT, until

MANUAL = Path(__file__).resolve().parents[3] / "tui" / "cli" / "manual" / "many-machines.md"
TRAIN = """
import os, sys, time
import light, torch, torch.distributed as dist
from ddptop import agent

dist.init_process_group("gloo")
model = torch.nn.Linear(8, 1)
optimizer = light.Descent(model)
open(f"began-{dist.get_rank()}-{os.environ.get('SLURM_RESTART_COUNT', 0)}", "w").write(" ".join(sys.argv[1:]))
print(f"rank {dist.get_rank()} of {os.uname().nodename}", flush=True)


@agent.on_checkpoint
def save(step):
    open(f"saved-{dist.get_rank()}", "w").write(str(step))


while True:
    optimizer.zero_grad()
    model(torch.randn(16, 8)).pow(2).mean().backward()
    optimizer.step()
    time.sleep(0.02)
"""
SLOW_S = 120.0
"""Seconds for what takes some on a busy machine: two hosts load torch, and find each other."""


@pytest.fixture
def place(slurm: Cluster) -> Iterator[Cluster]:
    """The hosts with a training script, a `ddptop` on the path of both, and no job."""
    for each in slurm.shared.iterdir():
        each.unlink() if each.is_file() else shutil.rmtree(each)
    (slurm.shared / "train.py").write_text(TRAIN)
    (slurm.shared / "light.py").write_text(LIGHT.read_text())
    yield slurm
    slurm.hosts[0].run(["scancel", "--user=root"])
    until(lambda: not jobs(slurm), "no job is left", SLOW_S)


def script(name: str) -> str:
    """Return a script of the manual."""
    found = re.search(rf"<!-- {name}: begin -->\n```sh\n(.*?)```", MANUAL.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def submit(place: Cluster, text: str) -> str:
    """Hand a script to sbatch; return the number of the job."""
    (place.shared / "job.sh").write_text(text)
    done = place.hosts[0].run(["sbatch", "--parsable", "job.sh"])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def jobs(place: Cluster) -> str:
    """Return what the queue lists."""
    return place.hosts[0].run(["squeue", "--noheader"]).stdout


def told(place: Cluster, host: int, run: str) -> dict[str, Any]:
    """Return what `status --json` of a host tells of a run."""
    done = place.hosts[host].ask("status", run, "--json")
    return dict(json.loads(done.stdout)) if done.stdout else {}


def lines(place: Cluster, host: int, run: str) -> list[str]:
    """Return what `logs` prints on a host, without the times, the ranks and the hosts before the lines."""
    return [line.partition("] ")[2] for line in place.hosts[host].ask("logs", run).stdout.splitlines()]


def began(place: Cluster, start: int = 0) -> bool:
    """Say whether both ranks train in that start of the job."""
    return all((place.shared / f"began-{rank}-{start}").exists() for rank in (0, 1))


def left(place: Cluster) -> list[str]:
    """Return the command lines on both hosts that are not Slurm's own."""
    lines = [line for host in place.hosts for line in host.processes().values()]
    return [line for line in lines if not re.match(r"munged|:? ?slurm|sleep|bash", line)]


def output(place: Cluster, job: str) -> str:
    """Return what a job has printed."""
    file = place.shared / f"train-{job}.txt"
    return file.read_text() if file.exists() else ""


def attach(place: Cluster, job: str) -> None:
    """Look at a job from the node that its observer is not on, and leave."""
    command = [*DDPTOP, "attach", "--slurm", job, "--plain", "--interval", "0.2"]
    process = place.hosts[1].popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert any("step " in line for line in process.stdout)
    assert place.hosts[0].left("attach")
    place.hosts[1].signal(process, signal.SIGINT)
    _, said = process.communicate(timeout=SLOW_S)
    # `nsenter` has no exit code of a command that was interrupted.
    assert f"train-{job} goes on" in said
    until(lambda: not place.hosts[0].left("attach"), "the step to end")
    assert told(place, 0, f"train-{job}")["state"] == "running"


@pytest.mark.parametrize(("name", "world"), [("sbatch", 2), ("srun", 4)])
def test_a_script_of_the_manual_trains_and_leaves_nothing(place: Cluster, name: str, world: int) -> None:
    """Both hosts have the run under the name of the job, and the logs of all ranks.

    `attach --slurm` shows it from any node by the number of the job; Ctrl-C ends its step, and the job goes on.
    scancel ends it on both hosts, within seconds and without a rest.
    """
    job = submit(place, script(name))
    until(lambda: began(place), f"both ranks train; {output(place, job)}", SLOW_S)
    run = f"train-{job}"
    for host in (0, 1):
        until(lambda host=host: told(place, host, run).get("world") == world, "the run is known")  # type: ignore[misc]
    # The limit of the script is 20 minutes.
    until(lambda: told(place, 0, run).get("ends_at"), "the end of the allocation is known")
    frame = told(place, 0, run)
    assert 0 < frame["ends_at"] - frame["at"] <= 1200
    printed = {f"rank {rank} of node{1 + rank * 2 // world}" for rank in range(world)}
    for host in (0, 1):
        until(lambda host=host: printed <= set(lines(place, host, run)), "the logs of both hosts")  # type: ignore[misc]
    if name == "sbatch":
        attach(place, job)
    place.hosts[0].run(["scancel", job])
    until(lambda: not jobs(place), "the job is gone", SLOW_S)
    until(lambda: not left(place), f"nothing is left, but {left(place)}", 20.0)
    for host in (0, 1):
        assert told(place, host, run)["state"] == "killed"


def test_a_requeued_job_goes_on_and_a_sigterm_saves_a_checkpoint(place: Cluster) -> None:
    """It has saved; the next start has a number in its name and `--resume`, and nothing is left of the first one.

    SIGTERM from the scheduler then lets all ranks save at the same step and end there with exit code 0.
    """
    job = submit(place, script("requeue"))
    until(lambda: began(place), f"both ranks train; {output(place, job)}", SLOW_S)
    assert (place.shared / "began-0-0").read_text() == ""
    until(lambda: (told(place, 0, f"train-{job}").get("step") or 0) > 20, "all ranks are heard", SLOW_S)
    place.hosts[0].run(["scontrol", "requeue", job])
    until(lambda: not left(place), f"nothing is left of it, but {left(place)}", SLOW_S)
    # Slurm waits two minutes by itself.
    until(lambda: "PD" in jobs(place), "it is queued", SLOW_S)
    until(lambda: place.hosts[0].run(["scontrol", "update", f"JobId={job}", "StartTime=now"]).returncode == 0, "now")
    until(lambda: began(place, 1), f"both ranks train again; {output(place, job)}", SLOW_S)
    assert (place.shared / "began-0-1").read_text() == "--resume"
    for host in (0, 1):
        states = {run["run"]: run["state"] for run in json.loads(place.hosts[host].ask("ps", "--json").stdout)}
        assert states[f"train-{job}"] == "stopped"
        assert states[f"train-{job}.2"] in ("starting", "running")
    run = f"train-{job}.2"
    until(lambda: (told(place, 0, run).get("step") or 0) > 20, "all ranks are heard", SLOW_S)
    for rank in (0, 1):
        (place.shared / f"saved-{rank}").unlink()
    place.hosts[0].run(["scancel", "--signal=TERM", job])
    until(lambda: not jobs(place), "the job is gone", SLOW_S)
    steps = [(place.shared / f"saved-{rank}").read_text() for rank in (0, 1)]
    assert steps[0] == steps[1], output(place, job)
    for host in (0, 1):
        assert told(place, host, run)["state"] == "stopped", output(place, job)
    until(lambda: not left(place), "nothing is left", SLOW_S)


def test_salloc_runs_it_to_its_end(place: Cluster) -> None:
    """Lines of text without a terminal, the exit code of the run, and the name of the run first."""
    short = TRAIN.replace("while True", "for _ in range(20)") + "dist.destroy_process_group()\n"
    (place.shared / "train.py").write_text(short)
    done = place.hosts[0].run(
        ["salloc", "--nodes=2", "--time=5", *DDPTOP, "launch", "--slurm", "--ntasks-per-node", "1", "train.py"],
        timeout=SLOW_S,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"train-\d+ starts on 2 nodes of job \d+: node1, node2", done.stderr)
    assert re.search(r"train-\d+ finished, exit code 0", done.stdout)
    until(lambda: not left(place), "nothing is left", SLOW_S)
