"""Looks from outside against the agent's own records, what they cost, and what they show of a slow rank.

`python tests/bench/observer/outside.py agree`: two ranks train under the agent, and are looked at from outside at the
same time; prints the share of each phase by both. Target: within 10 points. `--script "FILE ARGUMENT"`: of that.

`... cost`: two plain ranks, looked at in turns of some seconds; prints the time of a step with looks, without, and
without again (A/A), and the CPU that the looks took. Target: within the A/A, and at most 3 % of a core a rank.

`... slow`: rank 1 of plain jobs is slow in one way after the other; prints the shares of both ranks, and the verdict.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ddptop.agent import wire
from ddptop.agent.observer.judge.kinds.by_looks import SlowByLooks
from ddptop.agent.observer.sampling.sampling import Sampling
from ddptop.agent.record import recording
from ddptop.agent.run import identity
from ddptop.agent.run.records import Member, Run
from ddptop.agent.run.rundir import RunDir

PHASES = ("data", "forward", "backward", "optimizer", "wait", "other")
WORKER = (os.path.abspath(__file__), "--train")
SLOW = ("nothing", "data", "forward", "hook", "cpu", "optimizer")


def main() -> None:
    """Run the jobs, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("agree", "cost", "slow"))
    parser.add_argument("--seconds", type=float, default=60.0, help="of looks at each job")
    parser.add_argument("--script", action="append", default=[], help="instead of the nets of this file; repeatable")
    parser.add_argument("--slow", action="append", choices=SLOW, help="these ways alone; repeatable")
    parser.add_argument("--turns", type=int, default=6, help="of each kind, for the cost")
    options = parser.parse_args()
    if options.what == "agree":
        nets = (("conv", "nothing"), ("conv", "data"), ("linear", "nothing"), ("linear", "forward"))
        jobs: list[Sequence[str]] = [shlex.split(script) for script in options.script]
        jobs = jobs or [(*WORKER, *net) for net in nets]
        worst = max(_agree(job, options.seconds) for job in jobs)
        print(f"furthest apart: {worst:.1f} points; target: 10")
    elif options.what == "cost":
        _cost(options.seconds, options.turns)
    else:
        for slow in options.slow or SLOW:
            with _job((*WORKER, "conv", slow)) as folder:
                shares, lines, verdict = _look(_members(folder), options.seconds)
            print(f"rank 1 is slow in: {slow}\n  {verdict}")
            for rank, found in sorted(shares.items()):
                most = max(lines[rank].items(), key=lambda each: each[1], default=(("", ""), 0.0))
                print(f"  rank {rank}  {_percents(found)}  most: {most[0][1]} ({most[0][0]}, {most[1]:.0%})")


def _percents(shares: Mapping[str, float]) -> str:
    return "  ".join(f"{phase} {100 * shares.get(phase, 0.0):5.1f}" for phase in PHASES)


@contextlib.contextmanager
def _job(job: Sequence[str], *, agent: bool = False) -> Iterator[Path]:
    """Two ranks, past their first steps; in the folder are their pids and the times of their steps, or their run."""
    with tempfile.TemporaryDirectory(prefix="dtl-", dir="/tmp") as name:
        os.chmod(name, 0o700)
        folder = Path(name)
        own = {"OUT": name, "DDPTOP_RUNTIME_DIR": name, "DDPTOP_RECORD_EVERY": "1", "OMP_NUM_THREADS": "1"}
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        worker = [*(("-m", "ddptop.agent") if agent else ()), *job]
        with subprocess.Popen(
            [*torchrun, *worker], env=dict(os.environ) | own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                while not (_has_steps(folder) if agent else len([*folder.glob("steps*")]) == 2):
                    if process.poll() is not None:
                        raise SystemExit("the job has ended")
                    time.sleep(0.2)
                time.sleep(3)
                yield folder
            finally:
                process.terminate()
                process.wait()
        time.sleep(2)


def _has_steps(folder: Path) -> bool:
    found = [RunDir(each.parent) for each in folder.glob("*/run.json")]
    return any(isinstance(each, wire.Steps) and each.steps[-1].step > 5 for run in found for each in _steps(run))


def _steps(run: RunDir) -> list[wire.Telemetry]:
    return [*recording.read_steps(run.database)] if run.database.exists() else []


def _members(folder: Path) -> list[Member]:
    found = []
    for rank in range(2):
        process = identity.identify(int((folder / f"pid{rank}").read_text()))
        assert process is not None
        found.append(Member(rank, rank, 2, process, "here", 0, "", "", None, by_agent=False))
    return found


def _looks(members: list[Member], seconds: float) -> Iterator[wire.Sampled]:
    run = Run("bench", "", "outside.py", (), 2, None, None, 0, False, cwd=str(Path(__file__).parent), outside=True)
    made = Sampling(run, lambda text, _: print(text), ())
    for member in members:
        made.follow(member)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.2)
        yield from (each for each in made.take() if isinstance(each, wire.Sampled))
    made.close()


def _look(
    members: list[Member], seconds: float
) -> tuple[dict[int, dict[str, float]], dict[int, dict[Any, float]], str]:
    """Return the shares of phases and of lines by rank, over some seconds of looks, and the first verdict."""
    judge, began, verdict = SlowByLooks(len(members)), time.monotonic(), "nobody is named"
    looks: defaultdict[int, int] = defaultdict(int)
    phases: dict[int, defaultdict[str, float]] = {0: defaultdict(float), 1: defaultdict(float)}
    lines: dict[int, defaultdict[Any, float]] = {0: defaultdict(float), 1: defaultdict(float)}
    for each in _looks(members, seconds):
        judge.sampled(each)
        if verdict.startswith("nobody") and (found := judge.finding(each.at_ns)) is not None:
            verdict = f"after {time.monotonic() - began:.0f} s: {found.text}"
        looks[each.rank] += each.looks
        for phase, share in each.shares.items():
            phases[each.rank][phase] += share * each.looks
        for line in each.lines:
            lines[each.rank][line.phase, line.where] += line.share * each.looks
    return (
        {rank: {phase: number / looks[rank] for phase, number in each.items()} for rank, each in phases.items()},
        {rank: {line: number / looks[rank] for line, number in each.items()} for rank, each in lines.items()},
        verdict,
    )


def _agree(job: Sequence[str], seconds: float) -> float:
    with _job(job, agent=True) as folder:
        run = next(RunDir(each.parent) for each in folder.glob("*/run.json"))
        members = [msgspec.structs.replace(each, by_agent=False, log=None) for each in run.members().values()]
        began = time.time_ns()
        shares, *_ = _look(members, seconds)
        ended = time.time_ns()
        time.sleep(3)
        steps: defaultdict[int, list[wire.Step]] = defaultdict(list)
        for message in _steps(run):
            if isinstance(message, wire.Steps):
                steps[message.rank] += [each for each in message.steps if began < each.end_at_ns <= ended]
    print(" ".join(job[-2:]))
    worst = 0.0
    for rank, found in sorted(shares.items()):
        wall = sum(each.wall_ns for each in steps[rank])
        own = {phase: sum(getattr(each, f"{phase}_ns") or 0 for each in steps[rank]) / wall for phase in PHASES}
        apart = max(abs(own[phase] - found.get(phase, 0.0)) for phase in PHASES)
        worst = max(worst, 100 * apart)
        number = len(steps[rank])
        print(f"  rank {rank}  agent    {_percents(own)}   {number} steps of {wall / number / 1e6:.1f} ms")
        print(f"          outside  {_percents(found)}   at most {100 * apart:.1f} points apart", flush=True)
    return worst


def _cost(seconds: float, turns: int) -> None:
    """Compare the steps of turns with looks and without, each beside one of the other kind."""
    kinds = ("without", "looks", "without again")
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    costs: list[float] = []
    with _job((*WORKER, "conv", "nothing")) as folder:
        members = _members(folder)
        for turn in range(turns):
            for kind in kinds if turn % 2 else kinds[::-1]:
                began = time.time()
                if kind == "looks":
                    costs += [each.cost_percent for each in _looks(members, seconds / 3) if each.looks]
                else:
                    time.sleep(seconds / 3)
                ends = [float(line) for line in (folder / "steps0").read_text().split()]
                inside = [end for end in ends if began + 1 < end < time.time()]
                took[kind].append(1000 * statistics.median(b - a for a, b in itertools.pairwise(inside)))
        for kind in kinds:
            each_turn = " ".join(f"{each:.1f}" for each in took[kind])
            print(f"{kind:14} {statistics.median(took[kind]):7.2f} ms a step   ({each_turn})")
        print(f"looks took {statistics.fmean(costs):.2f} % of a core for each rank, at most {max(costs):.2f} %")


def _train(model: str, slow: str) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, late = dist.get_rank(), dist.get_rank() == 1
    Path(os.environ["OUT"], f"pid{rank}").write_text(str(os.getpid()))

    class Samples(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
        def __len__(self) -> int:
            return 1 << 30

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            if late and slow == "data":
                time.sleep(0.002)
            return torch.randn(3, 32, 32), index % 10

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            conv = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.AvgPool2d(4)]
            inner = (
                [nn.Flatten(), nn.Linear(1024, 10)] if model == "conv" else [nn.Linear(1024, 1024), nn.Linear(1024, 10)]
            )
            self.parts = (
                nn.Sequential(*conv, *inner)
                if model == "conv"
                else nn.Sequential(nn.Flatten(), nn.Linear(3072, 1024), nn.ReLU(), *inner)
            )

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            if late and slow == "forward":
                time.sleep(0.04)
            if late and slow == "cpu":
                self.more(batch)
            found: torch.Tensor = self.parts(batch)
            return found

        def more(self, batch: torch.Tensor) -> None:
            until = time.thread_time() + 0.04
            while time.thread_time() < until:
                batch.square().mean()

    def hold(_: torch.Tensor) -> None:
        time.sleep(0.04)

    net = nn.parallel.DistributedDataParallel(Net())
    if late and slow == "hook":
        next(iter(net.parameters())).register_hook(hold)
    optimizer = torch.optim.Adam(net.parameters())
    if late and slow == "optimizer":
        optimizer.register_step_pre_hook(lambda *_: time.sleep(0.04))
    with Path(os.environ["OUT"], f"steps{rank}").open("w", buffering=1) as out:
        for batch, target in torch.utils.data.DataLoader(Samples(), batch_size=16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(batch), target).backward()
            optimizer.step()
            out.write(f"{time.time():.6f}\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        _train(*sys.argv[2:])
    else:
        main()
