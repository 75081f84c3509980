"""Asynchronous training with parameter servers: nobody waits for the slowest.

Technique: servers hold the parameters, a shard each. A worker pushes its gradient and pulls the
parameters back; a server applies each push as it comes. A gradient thus belongs to parameters
that are some updates old when it is applied: its staleness. `--staleness BOUND` lets no worker
get more than so many steps ahead of the slowest; with 0 they go in step.
Source: Li et al. 2014, Scaling Distributed Machine Learning with the Parameter Server; the bound is that of
Ho et al. 2013, More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import SGD, Optimizer

from ddptop.trainers import CATALOGUE
from ddptop.trainers.programs.asynchronous.loop import Asynchronous
from ddptop.trainers.rank import start
from ddptop.trainers.rank.group import Place
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

LEAVES: Final = 1.0
"""Last number of a push: 0 with a gradient, this with the farewell of a worker."""


class Server(Optimizer):
    """One shard of the parameters, and for each worker a clock: the steps that it has pushed.

    A step of a server is a tick of the slowest worker's clock. Servers and workers thus count the
    same steps, and a group that is held at one has no message under way.

    Args:
        bound: steps that a worker may be ahead of the slowest.
        budget: updates after which the workers are told to end.
    """

    def __init__(self, shard: torch.Tensor, workers: Iterable[int], lr: float, bound: float, budget: float) -> None:
        super().__init__([shard], {"lr": lr})
        self.shard = shard
        self.clocks = dict.fromkeys(workers, 0)
        self.updates = 0
        self._bound, self._budget = bound, budget
        self._push = torch.empty(len(shard) + 1)
        self._unanswered: dict[int, int] = {}
        """Staleness of the last gradient of each worker that waits for the parameters."""
        self._pulled = dict.fromkeys(self.clocks, 0)
        """How many updates were in the parameters that each worker has."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # computes no loss
        """Serve until every worker has come one step further, or all have left."""
        tick = min(self.clocks.values()) + 1
        while min(self.clocks.values(), default=tick) < tick:
            worker = dist.recv(self._push)  # from whoever comes first
            gradient, leaves = self._push[:-1], self._push[-1].item() == LEAVES
            if leaves:
                del self.clocks[worker]
            else:
                self._unanswered[worker] = self.updates - self._pulled[worker]
                self.shard.add_(gradient, alpha=-self.defaults["lr"])  # no other gradient is waited for
                self.updates += 1
                self.clocks[worker] += 1
            self._answer()

    def _answer(self) -> None:
        """Send the parameters to all who wait for them and may go on."""
        slowest = min(self.clocks.values(), default=0)
        for worker in [each for each in self._unanswered if self.clocks[each] - slowest <= self._bound]:
            notes = torch.tensor([self._unanswered.pop(worker), self.updates >= self._budget])
            dist.send(torch.cat([self.shard, notes]), worker)
            self._pulled[worker] = self.updates


class Remote(Optimizer):
    """A worker's optimizer: its step is done by the servers, which are the first ranks."""

    def __init__(self, parameters: Iterable[nn.Parameter], servers: int) -> None:
        super().__init__(parameters, {})
        self._parameters: list[nn.Parameter] = self.param_groups[0]["params"]
        self._servers = servers
        self._answers = [torch.empty(len(shard) + 2) for shard in self.shards(self._parameters)]
        self.staleness = 0
        """Updates by others between the last pull and the push that followed it."""
        self.over = False
        """True once the servers have had as many updates as they were to get."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # computes no loss
        """Push the gradient, pull the parameters."""
        # Who is ready to receive before it sends keeps no server waiting.
        pulls = [dist.irecv(answer, server) for server, answer in enumerate(self._answers)]
        gradients = [value.grad for value in self._parameters if value.grad is not None]
        pushes = self._push(self.shards(gradients), 0.0)
        for message in [*pulls, *pushes]:
            message.wait()
        pulled = torch.cat([answer[:-2] for answer in self._answers])
        vector_to_parameters(pulled.to(self._parameters[0].device), self._parameters)
        staleness, over = self._answers[0][-2:].tolist()
        self.staleness, self.over = int(staleness), bool(over)

    def leave(self) -> None:
        """Tell the servers that nothing more will come."""
        for message in self._push([torch.zeros(len(answer) - 2) for answer in self._answers], LEAVES):
            message.wait()

    def shards(self, tensors: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return these, one after the other, as cut up for the servers."""
        return parameters_to_vector(tensors).detach().cpu().tensor_split(self._servers)

    @staticmethod
    def _push(parts: Sequence[torch.Tensor], leaves: float) -> list[Any]:
        return [dist.isend(torch.cat([part, torch.tensor([leaves])]), server) for server, part in enumerate(parts)]


class Synchronous(Replicas):
    """The same job by DDP, where all wait for the slowest; for comparison."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, place: Place) -> None:
        super().__init__(model, optimizer, place)
        self._throughput = Throughput()

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Take one step, and count its images."""
        loss = super().step(images, labels)
        self._throughput.add(len(images))
        return loss

    def note(self) -> str:
        """Return the images a second of all ranks together."""
        return f", {self.place.total(self._throughput.since_last())[0]:,.0f} images/s"


def model(asked: Options) -> nn.Module:
    """Return a perceptron of two layers, slow on the rank that was asked for."""
    layers = nn.Linear(MNIST.size * MNIST.size, 128), nn.ReLU(), nn.Linear(128, MNIST.classes)
    net = nn.Sequential(nn.Flatten(), *layers)
    slow: Slowness | None = asked.slow
    if slow is not None and slow.rank == dist.get_rank():
        delay(net, lambda _: slow.amount / 1000)
    return net


def task(asked: Options) -> Task:
    """Return what is trained."""
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


def work(name: str, asked: Options, place: Place) -> None:
    """Do what the options ask for, on one rank.

    Raises:
        Refusal: the ranks cannot be dealt out so.
    """
    slow: Slowness | None = asked.slow
    if slow is not None:
        slow.check(place, first=0 if asked.sync else asked.servers)
    if asked.sync:
        Training(name, task(asked), asked, place).run()
        return
    if place.world <= asked.servers:
        raise Refusal(f"{asked.servers} servers and a worker are {asked.servers + 1} ranks at least, not {place.world}")
    if place.backend == "nccl":
        raise Refusal("a server takes the push of whoever comes first, which nccl cannot; choose gloo")
    Asynchronous(name, task(asked), asked, place, Server, Remote).run()


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
