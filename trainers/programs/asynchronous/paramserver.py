"""Asynchronous training with parameter servers: no worker waits for the slowest.

Technique: each server holds a shard of the parameters. A worker pushes its gradient and pulls the
parameters back; a server applies each push when it arrives. A gradient thus belongs to parameters
that are some updates old when it is applied: this number is its staleness. With `--staleness BOUND` no worker
gets more than BOUND steps ahead of the slowest; with 0 all do the same steps together.
Source: Li et al. 2014, Scaling Distributed Machine Learning with the Parameter Server; the bound is that of
Ho et al. 2013, More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Optimizer

from ddptop.trainers import CATALOGUE
from ddptop.trainers.programs.asynchronous.loop import Asynchronous
from ddptop.trainers.rank import start
from ddptop.trainers.rank.group import Position
from ddptop.trainers.rank.options import Defaults, Options, check, parser, whole_number
from ddptop.trainers.rank.refusal import Refusal
from ddptop.trainers.rank.slowness import Slowness, delay
from ddptop.trainers.training.data import MNIST, Normalized
from ddptop.trainers.training.loop import Training
from ddptop.trainers.training.task import Task
from ddptop.trainers.training.technique import Replicas
from ddptop.trainers.training.throughput import Throughput

GPU: Final = Defaults(device="GPU", epochs=3, batch_size=64, lr=0.05, samples=None, workers=2)
CPU: Final = Defaults(device="CPU", epochs=3, batch_size=64, lr=0.05, samples=24_000, workers=0)


class Synchronous(Replicas):
    """The same training by DDP, where all ranks wait for the slowest; for comparison."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, position: Position) -> None:
        super().__init__(model, optimizer, position)
        self._throughput = Throughput()

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Do one step, and count its images."""
        loss = super().step(images, labels)
        self._throughput.add(len(images))
        return loss

    def note(self) -> str:
        """Return the images a second of all ranks together."""
        return f", {self.position.total(self._throughput.since_last())[0]:,.0f} images/s"


def model(asked: Options) -> nn.Module:
    """Return a perceptron of two layers, slowed down on the rank of `--slow`."""
    layers = nn.Linear(MNIST.size * MNIST.size, 128), nn.ReLU(), nn.Linear(128, MNIST.classes)
    net = nn.Sequential(nn.Flatten(), *layers)
    slow: Slowness | None = asked.slow
    if slow is not None and slow.rank == dist.get_rank():
        delay(net, lambda _: slow.amount / 1000)
    return net


def task(asked: Options) -> Task:
    """Return the task that the options describe."""
    return Task(
        title="perceptron, 28*28 -> 128 -> 10",
        kind=MNIST,
        train_view=Normalized(MNIST),
        test_view=Normalized(MNIST),
        model=partial(model, asked),
        optimizer=SGD,
        log_every=100,
        technique=Synchronous,
    )


def work(name: str, asked: Options, position: Position) -> None:
    """Train by the options, on one rank.

    Raises:
        Refusal: there are too few ranks for these servers.
    """
    slow: Slowness | None = asked.slow
    if slow is not None:
        slow.check(position, first=0 if asked.sync else asked.servers)
    if asked.sync:
        Training(name, task(asked), asked, position).run()
        return
    if position.world <= asked.servers:
        raise Refusal(
            f"{asked.servers} servers and a worker are {asked.servers + 1} ranks at least, not {position.world}"
        )
    if position.backend == "nccl":
        raise Refusal("a server takes the push of whoever comes first, which nccl cannot; choose gloo")
    Asynchronous(name, task(asked), asked, position).run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; return the exit code."""
    options = parser(CATALOGUE["paramserver"], GPU if torch.cuda.is_available() else CPU)
    own = options.add_argument_group("technique")
    own.add_argument(
        "--servers", type=whole_number(1), default=1, metavar="N",
        help="the first N ranks hold the parameters, the others train (default %(default)s)",
    )  # fmt: skip
    own.add_argument(
        "--staleness", type=whole_number(0), default=math.inf, metavar="BOUND",
        help="steps that a worker may be ahead of the slowest (default: any number)",
    )  # fmt: skip
    own.add_argument("--sync", action="store_true", help="train by DDP on all ranks instead, for comparison")
    own.add_argument(
        "--slow", type=Slowness.read, metavar="RANK:MS", help="let a rank sleep so many ms in each forward pass"
    )
    return start.run(options, partial(work, options.prog), arguments, check)


if __name__ == "__main__":
    sys.exit(main())
