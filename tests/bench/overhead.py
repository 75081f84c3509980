"""What the agent costs a training step: `python tests/bench/overhead.py [--quick]`, or `--whole` for whole jobs.

Whole jobs differ by 10-20 % from run to run, so the agent is switched on and off between short blocks of one job, and
the medians of the ratios within a round are compared: on/off, and off/off beside it as the control that says how far
the figures can be trusted.  Every step is recorded, however short it is.  The CPU time of the rank, all threads, is
compared likewise: it is what the agent costs a machine whose cores are all busy, and is less disturbed by what else
runs there.  `--tool tensorboard`, `--tool wandb` (offline) and `--tool traceml` run the same loop with them in place of
the agent.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from switching import Hooks

TARGETS = {"linear": 1.05, "conv": 1.01, "resnet18": 1.01}
"""Largest ratio wanted, by network; 1-2 ms a step for the first, 15 ms and more for the others."""
BLOCK_S = 0.2
"""Short, so that what else runs on the machine is the same for the blocks of a round."""
PEERS = ("tensorboard", "wandb", "traceml")


def network(name: str) -> tuple[Any, Any]:
    """Return a model and a batch of random inputs for it."""
    import torch
    from torch import nn

    if name == "linear":
        return nn.Linear(128, 10), torch.randn(32, 128)
    if name == "conv":
        widths = 3, 16, 32
        blocks: list[Any] = []
        for narrow, wide in pairwise(widths):
            blocks += [nn.Conv2d(narrow, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(32 * 64, 10)), torch.randn(16, 3, 32, 32)
    from torchvision.models import resnet18

    return resnet18(num_classes=10), torch.randn(8, 3, 32, 32)


class Agent:
    """Takes every hook of ddptop's agent away and puts it back, between two steps of one job."""

    def __init__(self) -> None:
        from ddptop import agent

        self._session = cast("Any", agent._listener)
        self._hooks = Hooks()
        publisher = self._session._publisher
        self._publish = publisher._publish
        self._may_publish = True
        self._off_since: int = self._session.stamps.clock()

        def publish() -> None:
            if self._may_publish:
                self._publish()

        publisher._publish = publish

    @property
    def records(self) -> int:
        """Steps recorded since the start."""
        return int(self._session.stamps._seq)

    def find(self) -> None:
        """Find the functions that the agent has replaced, once the process groups are there."""
        self._hooks.find()

    def on(self) -> None:
        """Put every hook back."""
        self._hooks.on()
        self._may_publish = True
        self._session.stamps.resume(self._off_since)

    def off(self) -> None:
        """Take every hook away, and let the agent's thread do nothing."""
        self._hooks.off()
        self._may_publish = False
        self._off_since = self._session.stamps.clock()

    def step(self, model: Any) -> AbstractContextManager[None]:
        """Do nothing: the agent sees the step by itself."""
        return nullcontext()

    def after_step(self, loss: Any) -> None:
        """Do nothing, likewise."""


class Peer:
    """Another tool in the place of the agent, used as its tutorial does: rank 0 logs the loss of every
    step, or, with TraceML, every rank traces its steps.
    """

    def __init__(self, name: str, folder: str) -> None:
        self.records = 0
        self._on = False
        self._log: Callable[[float], None] | None = None
        self._trace: Callable[[Any], AbstractContextManager[None]] = lambda _: nullcontext()
        if name == "traceml":
            import traceml_ai

            traceml_ai.init(on_missing_aggregator="raise")
            self._trace = traceml_ai.trace_step
        elif name == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            writer: Any = SummaryWriter(folder)
            self._log = lambda loss: writer.add_scalar("loss", loss, self.records)
        else:
            import wandb

            run: Any = wandb.init(project="overhead", mode="offline", dir=folder, settings={"console": "off"})
            self._log = lambda loss: run.log({"loss": loss})

    def on(self) -> None:
        """Log from now on."""
        self._on = True

    def off(self) -> None:
        """Log no more."""
        self._on = False

    def step(self, model: Any) -> AbstractContextManager[None]:
        """Trace the step that begins."""
        return self._trace(model) if self._on else nullcontext()

    def after_step(self, loss: Any) -> None:
        """Log one loss."""
        if self._on:
            self.records += 1
            if self._log is not None:
                self._log(loss.item())


def work(name: str, rounds: int, tool: str, out: str) -> None:
    """Run the blocks in one rank of a job; rank 0 writes the seconds per step of each block."""
    import torch
    from torch import distributed, nn
    from torch.utils.data import DataLoader, IterableDataset

    torch.set_num_threads(1)
    switch: Any = None
    if tool == "ddptop":
        switch = Agent()
    distributed.init_process_group("gloo")
    if tool == "ddptop":
        switch.find()
    elif tool == "traceml" or distributed.get_rank() == 0:
        switch = Peer(tool, os.path.dirname(out))
    torch.manual_seed(0)
    model, inputs = network(name)
    labels = torch.randint(0, 10, (len(inputs),))

    class Endless(IterableDataset[tuple[Any, Any]]):
        def __iter__(self) -> Iterator[tuple[Any, Any]]:
            while True:
                yield inputs, labels

    ddp = nn.parallel.DistributedDataParallel(model)
    sgd = torch.optim.SGD(ddp.parameters(), lr=1e-3, momentum=0.9)
    batches = iter(DataLoader(Endless(), batch_size=None))

    def run(steps: int) -> tuple[float, float]:
        distributed.barrier()
        begin, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            images, targets = next(batches)
            with nullcontext() if switch is None else switch.step(ddp):
                sgd.zero_grad()
                loss = nn.functional.cross_entropy(ddp(images), targets)
                loss.backward()
                sgd.step()
            if switch is not None:
                switch.after_step(loss)
        distributed.barrier()
        return (time.perf_counter() - begin) / steps, (time.process_time() - cpu) / steps

    if switch is not None:
        switch.off()
    run(5)
    one = torch.tensor([run(20 if name == "linear" else 5)[0]])
    distributed.all_reduce(one, distributed.ReduceOp.MAX)
    steps = max(2, round(BLOCK_S / one.item()))
    seed, blocks = random.Random(rounds), []
    for _ in range(rounds):
        order = ["off", "again", "on"]
        seed.shuffle(order)
        times = {}
        for kind in order:
            before = 0 if switch is None else switch.records
            if switch is not None:
                switch.on() if kind == "on" else switch.off()
            times[kind], times[f"{kind} cpu"] = run(steps)
            seen = 0 if switch is None else switch.records - before
            assert switch is None or seen == (steps if kind == "on" else 0), f"{seen} of {steps} steps recorded"
        blocks.append(times)
    if distributed.get_rank() == 0:
        Path(out).write_text(json.dumps({"steps": steps, "blocks": blocks}))
    if switch is not None and tool == "ddptop":
        switch.on()
    distributed.destroy_process_group()


def measure(name: str, world: int, rounds: int, tool: str) -> dict[str, Any]:
    """Run one job and return its blocks."""
    with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as folder:
        out = os.path.join(folder, "blocks.json")
        own = [os.path.abspath(__file__), "--", "--work", name, "--rounds", str(rounds), "--tool", tool, "--out", out]
        if tool == "ddptop":
            command = ["-m", "ddptop.tui.cli.main", "launch", "--world", str(world), "--backend", "gloo"]
            command += own
        elif tool == "traceml":
            command = ["-m", "traceml_ai.launcher.cli", "run", "--logs-dir", folder, f"--nproc-per-node={world}"]
            command += [own[0], "--args", *own[2:]]
        else:
            command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", own[0], *own[2:]]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "DDPTOP_RECORD_EVERY": "1"}
        if "DDPTOP_RUNTIME_DIR" not in environment:
            environment["DDPTOP_RUNTIME_DIR"] = folder
        done = subprocess.run(
            [sys.executable, *command], env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if not os.path.exists(out):
            raise SystemExit(f"{name}, {world} ranks, {tool}: no result\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return dict(json.loads(Path(out).read_text()))


def ratio(blocks: list[dict[str, float]], above: str, below: str) -> tuple[float, float]:
    """Return the median of the rounds' ratios and half the width of its 95 % interval (bootstrap)."""
    ratios = [block[above] / block[below] for block in blocks]
    seed = random.Random(1)
    medians = sorted(statistics.median(seed.choices(ratios, k=len(ratios))) for _ in range(1000))
    return statistics.median(ratios), (medians[975] - medians[25]) / 2


def main() -> None:
    """Run the table, or one rank's part of it."""
    if "--whole" in sys.argv[1:2]:
        import whole

        whole.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds: about two minutes, coarser figures")
    parser.add_argument("--net", choices=TARGETS, action="append", help="only this network (may be repeated)")
    parser.add_argument("--world", type=int, action="append", help="only this number of ranks (may be repeated)")
    parser.add_argument("--rounds", type=int, help="rounds of three blocks")
    parser.add_argument("--tool", choices=("ddptop", *PEERS), action="append", help="only this tool")
    parser.add_argument("--work", choices=TARGETS, help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    rounds = arguments.rounds or (15 if arguments.quick else 60)
    if arguments.work:
        work(arguments.work, rounds, arguments.tool[0], arguments.out)
        return
    print("| network | ranks | tool | step off | on / off | off / off | target | CPU on / off | CPU off / off |")
    print("|---|---|---|---|---|---|---|---|---|")
    for tool in arguments.tool or ("ddptop",):
        for name in arguments.net or TARGETS:
            for world in arguments.world or (2, 4):
                blocks = measure(name, world, rounds, tool)["blocks"]
                on, control = ratio(blocks, "on", "off"), ratio(blocks, "again", "off")
                cpu, cpu_control = ratio(blocks, "on cpu", "off cpu"), ratio(blocks, "again cpu", "off cpu")
                step = statistics.median(block["off"] for block in blocks) * 1e3
                target = TARGETS[name]
                verdict = "met" if on[0] <= target else "unclear" if on[0] - on[1] <= target else "missed"
                print(
                    f"| {name} | {world} | {tool} | {step:.2f} ms | {on[0]:.3f} ± {on[1]:.3f}"
                    f" | {control[0]:.3f} ± {control[1]:.3f} | <= {target} {verdict}"
                    f" | {cpu[0]:.3f} ± {cpu[1]:.3f} | {cpu_control[0]:.3f} ± {cpu_control[1]:.3f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
