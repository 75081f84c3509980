"""Whole jobs in turn: `python tests/bench/overhead.py --whole`.

To switch hooks on and off in one job hides what both states pay.  Here each variant is a job of its own, all of them in
each round, in another order.  A wall differs by 10 % from job to job: the same job stands beside it (`plain again`) and
says how much. The CPU time of the training's own thread and of a rank, each per step, are quieter.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ddptop.agent import wire
from ddptop.agent.record import recording
from ddptop.agent.run import rundir

PROGRAM: Final = Path(__file__).with_name("programs") / "whole_job.py"
PLAIN: Final = "plain"
CONTROL: Final = "plain again"
NEEDS: Final = {"traceml": "traceml_ai", "tensorboard": "tensorboard", "wandb": "wandb"}
"""The module that a tool needs."""
PACKAGES: Final = {"traceml": "traceml-ai", "tensorboard": "tensorboard", "wandb": "wandb"}
VARIANTS: Final = (PLAIN, CONTROL, "agent", "launch", *NEEDS)
NUMBERS: Final = ("median", "least", "thread", "thread_least", "process", "rss", "own")
"""Of a rank: us a step by the wall and its least, the same of the thread, us a step of the process, MiB."""
_LEFT_S: Final = 15.0
LONGEST_S: Final = 300.0


def command(variant: str, world: int, device: str, own: Sequence[str], folder: str) -> list[str]:
    """Return the command line of a variant."""
    # Without an address the ranks meet at the name of the host, which need not resolve.
    alone = "--standalone", "--local-addr=127.0.0.1"
    torchrun = [sys.executable, "-m", "torch.distributed.run", *alone, f"--nproc-per-node={world}"]
    match variant:
        case "agent":
            return [*torchrun, "-m", "ddptop.agent", str(PROGRAM), *own]
        case "launch":
            launch = [sys.executable, "-m", "ddptop.tui.cli.main", "launch", "--plain", "--world", str(world)]
            return [*launch, "--backend", "nccl" if device == "cuda" else "gloo", str(PROGRAM), "--", *own]
        case "traceml":
            run = [sys.executable, "-m", "traceml_ai.launcher.cli", "run", "--logs-dir", folder]
            return [*run, f"--nproc-per-node={world}", str(PROGRAM), "--args", *own, "--tool", variant]
    return [*torchrun, str(PROGRAM), *own, *(["--tool", variant] if variant in NEEDS else [])]


def job(variant: str, net: str, world: int, device: str, blocks: int) -> dict[str, float]:
    """Run one job and return its numbers, as means over the ranks.

    Raises:
        SystemExit: it has failed; the text is the end of its output.
    """
    with tempfile.TemporaryDirectory(prefix="dtw-", dir="/tmp") as folder:
        own = ["--net", net, "--blocks", str(blocks), "--device", device, "--out", folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", rundir.BASE_VARIABLE: folder}
        if device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        done = subprocess.run(
            command(variant, world, device, own, folder),
            env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LONGEST_S, check=False,
        )  # fmt: skip
        _await_observers(Path(folder))
        reports = sorted(Path(folder).glob("rank*.json"))
        if len(reports) != world:
            raise SystemExit(
                f"{variant}, {net}, {world} ranks: no result\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
            )
        ranks = [json.loads(report.read_text()) for report in reports]
        return {name: statistics.fmean(rank[name] for rank in ranks) for name in NUMBERS} | _recorded(Path(folder))


def _recorded(base: Path) -> dict[str, float]:
    """Return one step in how many was recorded at the end of the run below this folder; empty where there is none."""
    databases = [rundir.RunDir(record.parent).database for record in base.glob("*/run.json")]
    told = [message for database in databases for message in recording.read_beats(database)]
    numbers = [message.recorded_every for message in told if isinstance(message, wire.Beat)]
    return {"every": max(numbers)} if numbers else {}


def _await_observers(base: Path) -> None:
    """Wait until the observer of a job has ended, which would share the cores with the next one."""
    deadline = time.monotonic() + _LEFT_S
    for record in base.glob("*/run.json"):
        directory = rundir.RunDir(record.parent)
        while rundir.is_alive(directory.read().observer) and time.monotonic() < deadline:
            time.sleep(0.1)


def table(net: str, found: Mapping[str, Sequence[Mapping[str, float]]], missing: Mapping[str, str]) -> list[str]:
    """Return the rows of one network: by variant the numbers of each job, and why others are missing."""
    plain = found[PLAIN]

    def middle(jobs: Sequence[Mapping[str, float]], name: str) -> float:
        return statistics.median(each[name] for each in jobs)

    def least(jobs: Sequence[Mapping[str, float]], name: str) -> float:
        return min(each[name] for each in jobs)

    rows = []
    for variant in VARIANTS:
        if variant in missing:
            rows.append(f"| {net} | {variant} | {missing[variant]} |" + " |" * 7)
            continue
        jobs = found[variant]
        of_medians = middle(jobs, "median") / middle(plain, "median")
        of_minima = least(jobs, "least") / least(plain, "least")
        # What else runs on the machine only adds to the CPU time: by their least, jobs can be compared.
        more = [least(jobs, name) - least(plain, name) for name in ("thread_least", "process")]
        share = more[0] / least(plain, "least")
        every = [f"{each['every']:.0f}" for each in jobs if "every" in each]
        rows.append(
            f"| {net} | {variant} | {middle(jobs, 'median') / 1e3:.3f} ms | {of_medians:.3f} | {of_minima:.3f}"
            f" | {middle(jobs, 'thread'):.0f} ({more[0]:+.0f}, {share:+.1%} of a step)"
            f" | {middle(jobs, 'process'):.0f} ({more[1]:+.0f})"
            f" | {middle(jobs, 'rss'):.0f} ({middle(jobs, 'rss') - middle(plain, 'rss'):+.0f})"
            f" | {middle(jobs, 'own'):.0f} ({middle(jobs, 'own') - middle(plain, 'own'):+.0f})"
            f" | {', '.join(every)} |"
        )
    return rows


def main(arguments: Sequence[str]) -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(prog="overhead.py --whole", description=__doc__.splitlines()[0])
    parser.add_argument("--net", action="append", choices=("linear", "conv", "resnet18"), help="may be repeated")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="only this one, and the plain ones")
    parser.add_argument("--world", type=int, default=2, help="ranks of a job")
    parser.add_argument("--rounds", type=int, default=5, help="jobs of each variant")
    parser.add_argument("--blocks", type=int, default=100, help="blocks of steps in a job")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args(arguments)
    chosen = [each for each in VARIANTS if not options.variant or each in (PLAIN, CONTROL, *options.variant)]
    missing = {
        tool: f"not installed: pip install {PACKAGES[tool]}"
        for tool, module in NEEDS.items()
        if tool in chosen and importlib.util.find_spec(module) is None
    }
    missing |= dict.fromkeys([each for each in VARIANTS if each not in chosen], "not asked for")
    print(
        f"{options.rounds} rounds of whole jobs, {options.world} ranks on {options.device}; each number is the median"
        " of the rounds, and in brackets what it is more than plain, by the least of CPU times"
    )
    titles = (
        "network",
        "job",
        "step",
        "ratio of medians",
        "of minima",
        "thread, us a step",
        "rank, us a step",
        "RSS",
        "own",
    )
    print("| " + " | ".join([*titles, "last, one step recorded in"]) + " |")
    print("|---" * (len(titles) + 1) + "|", flush=True)
    order = random.Random(1)
    for net in options.net or ("linear", "conv"):
        found: dict[str, list[dict[str, float]]] = {each: [] for each in chosen if each not in missing}
        try:
            for number in range(1, options.rounds + 1):
                for variant in order.sample(list(found), len(found)):
                    one = job(variant, net, options.world, options.device, options.blocks)
                    found[variant].append(one)
                    told = f"{net}, round {number} of {options.rounds}: {variant} {one['median'] / 1e3:.3f} ms a step"
                    print(told, file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            sys.exit(130)
        finally:
            # Rounds take minutes each: those that are whole count, also where a job fails or somebody interrupts.
            whole = min(map(len, found.values()))
            if whole < options.rounds:
                print(f"ended after {whole} of {options.rounds} rounds of {net}", file=sys.stderr)
            if whole:
                rows = table(net, {each: jobs[:whole] for each, jobs in found.items()}, missing)
                print("\n".join(rows), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
