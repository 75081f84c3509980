"""A training whose steps are timed by itself, with or without a tool in it: one job of `overhead.py --whole`.

Knows nothing of ddptop.  The clocks are read once a block of steps: the wall, the CPU time of the training's own
thread, and that of the whole rank.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, IterableDataset

NETWORKS = ("linear", "conv", "resnet18")
BLOCK = {"linear": 20, "conv": 5, "resnet18": 2}
"""Steps between two looks at the clocks."""
WARMUP = 4
"""Blocks that do not count."""


def network(name: str, device: str) -> tuple[nn.Module, torch.Tensor]:
    """Return a model and a batch for it, larger on a GPU."""
    on_cuda = device == "cuda"
    if name == "linear":
        return nn.Linear(128, 10), torch.randn(32, 128)
    if name == "conv":
        blocks: list[nn.Module] = []
        for narrow, wide in pairwise((3, 16, 32)):
            blocks += [nn.Conv2d(narrow, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(32 * 64, 10)), torch.randn(16, 3, 32, 32)
    from torchvision.models import resnet18

    return resnet18(num_classes=10), torch.randn(64, 3, 224, 224) if on_cuda else torch.randn(8, 3, 32, 32)


class Endless(IterableDataset[Any]):
    """The same batch for ever, so that the loader costs the same in every job."""

    def __init__(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        self._batch = batch

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self._batch


class Tool:
    """Another tool in the place of ddptop, used as its tutorial does; nothing where the name is empty."""

    def __init__(self, name: str, folder: str, rank: int) -> None:
        self._log: Callable[[float, int], None] | None = None
        self.step: Callable[[Any], AbstractContextManager[Any]] = lambda _: nullcontext()
        self.close: Callable[[], object] = lambda: None
        if name == "traceml":
            import traceml_ai

            traceml_ai.init(on_missing_aggregator="raise")
            self.step = traceml_ai.trace_step
        elif name == "tensorboard" and rank == 0:
            from torch.utils.tensorboard import SummaryWriter

            writer: Any = SummaryWriter(folder)
            self._log, self.close = (lambda loss, step: writer.add_scalar("loss", loss, step)), writer.close
        elif name == "wandb" and rank == 0:
            import wandb

            run: Any = wandb.init(project="overhead", mode="offline", dir=folder, settings={"console": "off"})
            self._log, self.close = (lambda loss, step: run.log({"loss": loss})), run.finish

    def after(self, loss: torch.Tensor, step: int) -> None:
        """Log the loss of a step."""
        if self._log is not None:
            self._log(loss.item(), step)


def resident() -> dict[str, float]:
    """Return the memory of this process in MiB: all that is resident, and what is its own."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "RssAnon"))}
    return {"rss": found["VmRSS"] / 1024, "own": found["RssAnon"] / 1024}


def main() -> None:
    """Train, and write what each block took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--net", choices=NETWORKS, default="linear")
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tool", default="")
    parser.add_argument("--out", default=".")
    options = parser.parse_args()
    torch.set_num_threads(1)
    on_cuda = options.device == "cuda"
    distributed.init_process_group("nccl" if on_cuda else "gloo")
    rank = distributed.get_rank()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if on_cuda else torch.device("cpu")
    if on_cuda:
        torch.cuda.set_device(device)
    tool = Tool(options.tool, options.out, rank)
    torch.manual_seed(0)
    model, inputs = network(options.net, options.device)
    labels = torch.randint(0, 10, (len(inputs),))
    batch = (inputs.pin_memory(), labels.pin_memory()) if on_cuda else (inputs, labels)
    ddp = nn.parallel.DistributedDataParallel(model.to(device), device_ids=[device.index] if on_cuda else None)
    sgd = torch.optim.SGD(ddp.parameters(), lr=1e-3, momentum=0.9)
    batches = iter(DataLoader(Endless(batch), batch_size=None))
    count = BLOCK[options.net]
    looks: list[tuple[float, float, float]] = []
    for number in range((WARMUP + options.blocks) * count + 1):
        if number % count == 0:
            if on_cuda:
                torch.cuda.synchronize()
            looks.append((time.perf_counter(), time.thread_time(), time.process_time()))
        images, targets = next(batches)
        with tool.step(ddp):
            images, targets = images.to(device, non_blocking=True), targets.to(device, non_blocking=True)
            sgd.zero_grad()
            loss = nn.functional.cross_entropy(ddp(images), targets)
            loss.backward()
            sgd.step()
        tool.after(loss, number)
    parts = [
        [(after - before) / count * 1e6 for before, after in zip(*pair, strict=True)]
        for pair in pairwise(looks[WARMUP:])
    ]
    walls, threads, processes = zip(*parts, strict=True)
    told = {
        "median": statistics.median(walls),
        "least": min(walls),
        "thread": statistics.median(threads),
        "thread_least": min(threads),
        # The mean: what other threads do comes once in many steps.
        "process": statistics.fmean(processes),
        **resident(),
    }
    # At last, under the name of the rank alone: whoever waits for it finds it whole.
    written = Path(options.out, f"rank{rank}.new")
    written.write_text(json.dumps(told))
    os.replace(written, Path(options.out, f"rank{rank}.json"))
    tool.close()
    distributed.barrier()
    distributed.destroy_process_group()


main()
