"""Do pause, step and resume hold in practice?  `python tests/bench/control/pause.py [--cycles N] [--case NAME]`.

One job for each case trains under `ddptop launch`; it is paused at random moments, sometimes
stepped, and let go, N times.  Where each rank stands is told by the script, which counts the
optimizer steps that it has begun, not by the agent.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CASES = {"linear 2": 2, "linear 4": 4, "conv 4": 4, "accumulation 2": 2, "gan 2": 2, "resnet workers 2": 2}
"""Name and world."""
LONGEST_RUN_S = 0.05
STEPPED = 0.2
"""Share of the pauses from which a few steps are made."""


# --- the training, inside the job


class Count:
    """Steps that this rank has begun, in a file that outlives the process and costs the training nothing."""

    def __init__(self, folder: str, rank: int) -> None:
        path = Path(folder) / f"count-{rank}"
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)
        self._steps = 0

    def around(self, optimizer: Any) -> Callable[[], None]:
        """Return a step of the optimizer that is counted before it is made: a rank is held at its end."""

        def step() -> None:
            self._steps += 1
            self._memory[:] = struct.pack("<q", self._steps)
            optimizer.step()

        return step


def train(case: str, folder: str) -> None:
    """Train until killed."""
    import torch
    import torch.distributed as dist
    from torch import nn

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    count = Count(folder, rank)
    kind = case.rpartition(" ")[0]

    def wrap(module: nn.Module) -> tuple[Any, Any]:
        ddp = nn.parallel.DistributedDataParallel(module)
        return ddp, torch.optim.SGD(ddp.parameters(), lr=1e-3)

    def evaluate(ddp: Any, inputs: Any) -> None:
        # As scripts do between epochs: no optimizer step, but a collective.
        with torch.no_grad():
            loss = ddp.module(inputs).mean()
        dist.all_reduce(loss)

    if kind == "gan":
        generator, for_generator = wrap(nn.Linear(16, 8))
        critic, for_critic = wrap(nn.Linear(8, 1))
        generate, criticize = count.around(for_generator), count.around(for_critic)
        while True:
            for _ in range(3):
                for_critic.zero_grad()
                (critic(torch.randn(8, 8)).mean() - critic(generator(torch.randn(8, 16)).detach()).mean()).backward()
                criticize()
            for_generator.zero_grad()
            (-critic(generator(torch.randn(8, 16))).mean()).backward()
            generate()
    if kind == "resnet workers":
        from torchvision.models import resnet18

        ddp, optimizer = wrap(resnet18(num_classes=10))
        images = torch.utils.data.TensorDataset(torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,)))
        step = count.around(optimizer)
        while True:
            for pictures, labels in torch.utils.data.DataLoader(images, batch_size=4, num_workers=1):
                optimizer.zero_grad()
                nn.functional.cross_entropy(ddp(pictures), labels).backward()
                step()
            evaluate(ddp, torch.randn(2, 3, 32, 32))
    conv = (nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 26 * 26, 10))
    ddp, optimizer = wrap(nn.Sequential(*conv) if kind == "conv" else nn.Linear(256, 10))
    shape = (16, 1, 28, 28) if kind == "conv" else (16, 256)
    step = count.around(optimizer)
    while True:
        for _ in range(50):
            optimizer.zero_grad()
            if kind == "accumulation":
                with ddp.no_sync():
                    for _ in range(3):
                        ddp(torch.randn(shape)).mean().backward()
            ddp(torch.randn(shape)).mean().backward()
            step()
        evaluate(ddp, torch.randn(shape))


# --- who pauses it, outside


def counts(folder: Path, world: int) -> list[int]:
    """Return the steps that each rank has begun."""
    return [struct.unpack("<q", (folder / f"count-{rank}").read_bytes())[0] for rank in range(world)]


def torment(case: str, cycles: int, folder: Path) -> Iterator[float]:
    """Pause, step and resume a run of the case; yield the seconds that each pause took.

    Raises:
        AssertionError: ranks were not at the same step, or not at the right one, or did not go on.
    """
    from support.values.watches import watched

    from ddptop.agent import wire
    from ddptop.agent.client.start.request import Request
    from ddptop.agent.control.caller import ask
    from ddptop.tui.launch.launch import launch

    world, seed = CASES[case], random.Random(case)
    arguments = ("--train", case, "--folder", str(folder))
    directory = launch(Request(__file__, arguments=arguments, world=world)).directory
    link = watched(directory)
    try:
        deadline = time.monotonic() + 120
        while not all((folder / f"count-{rank}").exists() for rank in range(world)) or min(counts(folder, world)) < 10:
            assert time.monotonic() < deadline, "no steps"
            time.sleep(0.1)
        for _ in range(cycles):
            time.sleep(seed.uniform(0, LONGEST_RUN_S))
            began = time.perf_counter()
            said = ask(directory, wire.Act(1, "pause", "benchmark")).text
            yield time.perf_counter() - began
            step = int(said.split()[3].replace(",", ""))
            assert counts(folder, world) == [step] * world, f"told {step}, are at {counts(folder, world)}"
            if seed.random() < STEPPED:
                steps = seed.randint(1, 5)
                ask(directory, wire.Act(1, "step", "benchmark", steps))
                step += steps
                assert counts(folder, world) == [step] * world, f"asked {step}, are at {counts(folder, world)}"
            ask(directory, wire.Act(1, "resume", "benchmark"))
            deadline = time.monotonic() + 30
            while min(counts(folder, world)) <= step:
                assert time.monotonic() < deadline, f"does not go on from {step}"
                time.sleep(0.001)
    finally:
        link.control.kill(1.0, None, lambda line: None)
        link.close()


def main() -> int:
    """Run the cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=500)
    parser.add_argument("--case", action="append", choices=tuple(CASES), help="this case only; may be repeated")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train, options.folder)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print("| case, ranks | held at one step | median, ms | p95, ms | worst, ms |\n|---|---|---|---|---|")
    failures = 0
    for case in options.case or CASES:
        took: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            try:
                took.extend(torment(case, options.cycles, Path(folder)))
            except AssertionError as problem:
                failures += 1
                print(f"{case}: {problem}", file=sys.stderr)
        if took:
            took.sort()
            figures = statistics.median(took), took[int(0.95 * len(took))], took[-1]
            shown = " | ".join(f"{1e3 * value:.1f}" for value in figures)
            print(f"| {case} | {len(took)} of {options.cycles} | {shown} |", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
