"""What the start of the observer costs inside a rank of a job that was started by hand.

    python tests/bench/observer/start.py [--starts 20] [--rounds 6] [--world 2] [--steps 50] [--quick]

First the call that the agent of local rank 0 makes before the script begins, in a process like any: its time, and its
CPU on all threads; the control is the same call for a run that has an observer.  Then whole jobs by torchrun, in each
round one with and two without an observer, in random order (without: the record names a process that lives): how long
until the script begins, and its first steps.  Printed are medians of the ratios within a round, with the least and the
most; without over without is the control.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import load

from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.process import observing
from ddptop.agent.run import rundir
from ddptop.agent.run.files.private import Claim
from ddptop.agent.run.rundir import Run, RunDir, identify, is_alive

JOB_S: Final = 600.0
SCRIPT: Final = """
import json, os, sys, time
began = time.time()
import psutil
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
ends = []
for _ in range(int(sys.argv[2])):
    optimizer.zero_grad()
    model(torch.randn(64, 256)).sum().backward()
    optimizer.step()
    ends.append(time.time())
told = {"process": psutil.Process().create_time(), "began": began, "ends": ends}
with open(os.path.join(sys.argv[1], f"told-{dist.get_rank()}"), "w") as file:
    json.dump(told, file)
dist.destroy_process_group()
"""


class Call(NamedTuple):
    """One start, in milliseconds."""

    wall: float
    """For so long the script waits."""
    cpu: float
    """Of this process, all threads."""


class Job(NamedTuple):
    """The first steps of one job, of rank 0, in seconds."""

    begin: float
    """From the start of the process to the first line of the script."""
    first: float
    """From there to the end of the first step: imports, rendezvous."""
    step: float
    """Mean of the others."""


@contextlib.contextmanager
def run_by_hand(world: int, *, taken: bool) -> Iterator[RunDir]:
    """Make the record of a job started by hand; where it is `taken`, it names this process as its observer."""
    run_id = secrets.token_hex(8)
    me = identify(os.getpid())
    run = Run(
        run=f"start-{run_id[:6]}", run_id=run_id, program="train.py", arguments=(), world=world, backend=None,
        device=None, created_at_ns=time.time_ns(), launched=False, owner=os.getuid(), local_world=world,
        observer=me if taken else None,
    )  # fmt: skip
    directory = rundir.create(run)
    yield directory
    # An observer writes into its directory until it has ended.
    deadline = time.monotonic() + load.END_S
    while (found := directory.read().observer) not in (None, me) and is_alive(found):
        if time.monotonic() > deadline:
            raise SystemExit(f"{directory.name}: its observer did not end within {load.END_S:.0f} s")
        time.sleep(0.05)


def call(*, taken: bool) -> Call:
    """Start an observer as an agent does; it finds that the run is locked, and ends."""
    faults = Faults()
    with run_by_hand(1, taken=taken) as directory:
        claim = Claim.acquire(directory.path)
        assert claim is not None
        with claim:
            spent, began = time.process_time(), time.perf_counter()
            observing.ensure(directory, 0, faults)
            wall, cpu = time.perf_counter() - began, time.process_time() - spent
            deadline = time.monotonic() + load.END_S
            # It says so in its log before it ends, for which it needs the lock's folder.
            while not taken and not directory.observer_log.stat().st_size:
                assert time.monotonic() < deadline, "the observer was not started"
                time.sleep(0.02)
    assert not faults.count, faults.last
    return Call(1e3 * wall, 1e3 * cpu)


def job(folder: Path, given: argparse.Namespace, *, observed: bool) -> Job:
    """Run a job by torchrun to its end."""
    for file in folder.glob("told-*"):
        file.unlink()
    with run_by_hand(given.world, taken=not observed) as directory:
        run = directory.read()
        environment = os.environ | {
            rundir.MARKER: run.run_id, rundir.DIRECTORY_VARIABLE: str(directory.path), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={given.world}"]
        done = subprocess.run(
            [*torchrun, "-m", "ddptop.agent", str(folder / "train.py"), str(folder), str(given.steps)],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=JOB_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"the job failed: {done.stderr[-1000:]}")
        named = directory.read().observer
        if observed != (named is not None and named != identify(os.getpid())):
            raise SystemExit(f"{directory.name}: its observer should {'have been' if observed else 'not be'} started")
    told = msgspec.json.decode((folder / "told-0").read_bytes())
    ends = told["ends"]
    return Job(told["began"] - told["process"], ends[0] - told["began"], (ends[-1] - ends[0]) / (len(ends) - 1))


def spread(values: Sequence[float], form: str = ".3f") -> str:
    """Return median, least and most."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    """Measure, and print rows for the table of the manual."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--starts", type=int, default=20)
    options.add_argument("--rounds", type=int, default=6, help="of three jobs each; 0: none")
    options.add_argument("--world", type=int, default=2)
    options.add_argument("--steps", type=int, default=50)
    options.add_argument("--quick", action="store_true", help="two starts, one round of one rank: does it work?")
    given = options.parse_args()
    if given.quick:
        given.starts, given.rounds, given.world, given.steps = 2, 1, 1, 5
    with tempfile.TemporaryDirectory(prefix="ds-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.environ[rundir.BASE_VARIABLE] = str(folder / "r")
        (folder / "train.py").write_text(SCRIPT)
        print("| start of the observer | ms on the thread of the script | ms CPU |\n|---|---|---|")
        for taken in (False, True):
            calls = [call(taken=taken) for _ in range(given.starts)]
            figures = " | ".join(spread(column, ".2f") for column in zip(*calls, strict=True))
            print(f"| {'the control: there is one' if taken else 'started'} | {figures} |", flush=True)
        rounds = []
        for number in range(given.rounds):
            kinds = ["with", "without", "again"]
            random.Random(number).shuffle(kinds)
            done = {kind: job(folder, given, observed=kind == "with") for kind in kinds}
            rounds.append(done)
            print(
                f"round {number + 1}: {json.dumps({kind: each._asdict() for kind, each in done.items()})}", flush=True
            )
    if not rounds:
        return
    names = {"begin": "until the script begins", "first": "until the first step", "step": f"steps 2 to {given.steps}"}
    print("| first steps of a job | with / without | without / without |\n|---|---|---|")
    for field, words in names.items():
        with_it, control = (
            [getattr(each[kind], field) / getattr(each["without"], field) for each in rounds]
            for kind in ("with", "again")
        )
        print(f"| {words} | {spread(with_it)} | {spread(control)} |")


if __name__ == "__main__":
    main()
