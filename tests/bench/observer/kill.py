"""The observer of a run is killed with -9, again and again at random moments: what is lost, and who is hurt.

    python tests/bench/observer/kill.py [--kills 100] [--world 8] [--rate 10] [--real] [--seed N] [--quick]

Three onlookers (`ddptop watch`) are there all the time; each of them may start another observer, and the next kill
comes at a random moment after that.  Afterwards the record is compared step by step with what each rank has noted
that it made.  A sampler reads /proc: which processes have the run's observer in their command line, and how many
sockets listen for commands.  Two processes of that kind for a moment are a starter that finds the lock taken; two that
listen are two observers.  With `--real`, two ranks train that torchrun started by hand.  Exit code 1 where a step is
lost, or where two observers were seen.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import load
from observer.sockets import listening

from ddptop.agent import wire
from ddptop.agent.record import recording
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import RunDir, is_alive

PERIOD_S: Final = 0.05
"""Between two looks of the sampler."""
OBSERVER: Final = b"ddptop.agent.observer"
TAKEOVER_S: Final = 120.0
LONGEST_LIFE_S: Final = 4.0
"""An observer is killed at a random moment before this age."""
NOTED: Final = struct.Struct("<qd")
"""A step of a real rank as the script notes it: its number and its loss."""
SCRIPT: Final = """
import os, struct, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
torch.manual_seed(dist.get_rank())
made = open(os.path.join(sys.argv[1], f"noted-{dist.get_rank()}"), "wb", buffering=0)
number = 0
while True:
    optimizer.zero_grad()
    loss = model(torch.randn(32, 64)).pow(2).mean()
    loss.backward()
    optimizer.step()
    number += 1
    made.write(struct.pack("<qd", number, loss.item()))
    over = torch.tensor(float(os.path.exists(os.path.join(sys.argv[1], "over"))))
    dist.all_reduce(over)
    if over:
        break
    time.sleep(0.02)
dist.destroy_process_group()
"""


class Sampler:
    """Looks into /proc for observers of one run until it is closed."""

    def __init__(self, directory: RunDir) -> None:
        self.looks = 0
        self.most_listening = 0
        self.most_named = 0
        self.longest_s = 0.0
        """For how long more than one process had the run's observer in its command line."""
        self._directory = directory
        self._since: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(PERIOD_S):
            self.looks += 1
            self.most_listening = max(self.most_listening, listening(self._directory))
            named = len(observers(self._directory))
            self.most_named = max(self.most_named, named)
            now = time.monotonic()
            self._since = (self._since or now) if named > 1 else None
            self.longest_s = max(self.longest_s, now - self._since if self._since else 0.0)

    def close(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()


def observers(directory: RunDir) -> list[int]:
    """Return the processes whose command line names the observer and this run; a zombie has none."""
    found, wanted = [], os.fsencode(directory.path)
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
                if wanted in words and any(word.startswith(OBSERVER) for word in words):
                    found.append(int(entry))
    return found


def kill_all(directory: RunDir, times: int, rng: random.Random) -> list[float]:
    """Kill the observer so often, and return how long each time the run had none."""
    without: list[float] = []
    last, killed = None, 0.0
    for _ in range(times + 1):
        deadline = time.monotonic() + TAKEOVER_S
        while not is_alive(observer := directory.read().observer) or observer == last:
            if time.monotonic() > deadline:
                raise SystemExit(f"{directory.name}: no other observer within {TAKEOVER_S:.0f} s")
            time.sleep(0.01)
        if last is not None:
            without.append(time.monotonic() - killed)
        if len(without) < times and observer is not None:
            time.sleep(rng.uniform(0, LONGEST_LIFE_S))
            killed, last = time.monotonic(), observer
            os.kill(observer.pid, signal.SIGKILL)
    return without


@contextlib.contextmanager
def onlookers(directory: RunDir, count: int) -> Iterator[None]:
    """Have so many processes that look at the run until the block ends."""
    command = [sys.executable, "-m", "ddptop.tui.cli.main", "watch", directory.name]
    looking = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield
    finally:
        for process in looking:
            process.terminate()
        for process in looking:
            process.wait()


Made = dict[int, dict[int, float]]
"""By rank and step, the loss that the rank has noted."""


@contextlib.contextmanager
def fake(given: argparse.Namespace, folder: Path) -> Iterator[tuple[RunDir, Callable[[], Made], Callable[[], None]]]:
    """Start fake ranks; yield the run, what they have noted so far, and the way to end them."""

    def noted() -> Made:
        found = load.read_made(folder)
        return {rank: {seq: loss for seq, (_, _, loss) in steps.items()} for rank, steps in found.items()}

    wanted = {"world": given.world, "rate": given.rate, "step_ms": 1000 / given.rate, "keep": True, "made": folder}
    with load.started(**wanted) as run:
        yield run.directory, noted, lambda: print("state at the end:", run.finish())


@contextlib.contextmanager
def real(_: argparse.Namespace, folder: Path) -> Iterator[tuple[RunDir, Callable[[], Made], Callable[[], None]]]:
    """The same with two ranks that train, which torchrun started by hand."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    os.environ[rundir.BASE_VARIABLE] = str(folder / "r")
    # A script of the installed package's name would be found in the current directory first.
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    leader = subprocess.Popen(
        [*torchrun, "-m", "ddptop.agent", str(script), str(folder)],
        cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def noted() -> Made:
        found = {}
        for rank in range(2):
            content = (folder / f"noted-{rank}").read_bytes()
            found[rank] = dict(NOTED.iter_unpack(content[: len(content) // NOTED.size * NOTED.size]))
        return found

    def end() -> None:
        (folder / "over").touch()
        print("torchrun ended with", leader.wait(load.END_S))
        observer = directory.read().observer
        deadline = time.monotonic() + load.END_S
        while is_alive(observer) and time.monotonic() < deadline:
            time.sleep(0.1)

    try:
        deadline = time.monotonic() + load.START_S
        while not (folder / "noted-1").exists() or not rundir.runs():
            if time.monotonic() > deadline or leader.poll() is not None:
                raise SystemExit("the ranks did not start")
            time.sleep(0.1)
        (directory,) = rundir.runs()
        yield directory, noted, end
    finally:
        if leader.poll() is None:
            leader.terminate()
            leader.wait()


def pace(noted: Callable[[], Made], seconds: float) -> float:
    """Return the steps a second of the slowest rank."""
    before, began = noted(), time.monotonic()
    time.sleep(seconds)
    after, took = noted(), time.monotonic() - began
    return min(len(after[rank]) - len(before.get(rank, {})) for rank in after) / took


def lost(database: Path, made: Made) -> tuple[int, int, int]:
    """Return how many of the steps that were made are not in the record, differ in it, and are in it unmade."""
    kept: dict[int, dict[int, float]] = {}
    for message in recording.read_steps(database):
        if isinstance(message, wire.Steps):
            kept.setdefault(message.rank, {}).update({step.step: step.loss or 0.0 for step in message.steps})
    missing = differ = unmade = 0
    for rank, steps in made.items():
        mine = kept.get(rank, {})
        missing += len(steps.keys() - mine.keys())
        unmade += len(mine.keys() - steps.keys())
        differ += sum(abs(mine[step] - loss) > 1e-6 * abs(loss) for step, loss in steps.items() if step in mine)
    return missing, differ, unmade


def main() -> int:
    """Do it; 1 where a step is lost, or two observers were seen."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--kills", type=int, default=100)
    options.add_argument("--world", type=int, default=8)
    options.add_argument("--rate", type=float, default=10.0)
    options.add_argument("--real", action="store_true", help="two ranks that train, by hand, in place of fake ones")
    options.add_argument("--seed", type=int, default=random.randrange(100_000))
    options.add_argument("--quick", action="store_true", help="three kills: does it work?")
    given = options.parse_args()
    load.allow_files()
    quiet_s = 20.0
    if given.quick:
        given.kills, given.world, quiet_s = 3, 4, 3.0
    print(f"seed {given.seed}", flush=True)
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="dk-", dir="/tmp", ignore_cleanup_errors=True) as name:
        group = real if given.real else fake
        with group(given, Path(name)) as (directory, noted, end):
            with onlookers(directory, 3):
                before = pace(noted, quiet_s)
                sampler = Sampler(directory)
                count, began = noted(), time.monotonic()
                without = kill_all(directory, given.kills, rng)
                took = time.monotonic() - began
                meanwhile = min((len(steps) - len(count[rank])) / took for rank, steps in noted().items())
                after = pace(noted, quiet_s)
            end()
            sampler.close()
            made = noted()
            missing, differ, unmade = lost(directory.database, made)
    steps = sum(map(len, made.values()))
    wrong = missing + differ + unmade
    print(
        f"no observer for {statistics.median(without):.2f} s ({min(without):.2f} to {max(without):.2f}); "
        f"{sampler.looks} looks: {sampler.most_listening} listened at most, "
        f"{sampler.most_named} had it in their command line (more than one for {sampler.longest_s:.1f} s at most)"
    )
    print(f"of {steps:,} steps: {missing} not in the record, {differ} differ, {unmade} in the record that nobody made")
    print(
        f"| observer killed {given.kills} times: steps lost; steps/s of the slowest rank before / meanwhile / after; "
        f"observers at once | {wrong} of {steps:,}; {before:.2f} / {meanwhile:.2f} / {after:.2f}; "
        f"{sampler.most_listening} | 0; equal; 1 |"
    )
    return 1 if wrong or sampler.most_listening > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
