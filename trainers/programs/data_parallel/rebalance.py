"""Dynamic load balancing: each rank's share of the global batch follows its measured speed.

Technique: synchronous training is as slow as its slowest rank, unless that rank has less to do.
Each rank times its own work on a step, from the draw of the batch to its last gradient, before
it waits for other ranks. The shares of the next steps are in proportion to the images per second
that this yields. A rank's gradient is weighted by its number of images, so that the sum is the gradient of
the whole global batch for any shares.
Source: Chen et al. 2020, Semi-dynamic load balancing: efficient distributed learning in
non-dedicated environments (LB-BSP); PyTorch documentation, DDP Communication Hooks.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, Sampler

import ddptop.agent as agent
from ddptop.trainers import CATALOGUE
from ddptop.trainers.rank.group import Position
from ddptop.trainers.rank.options import Defaults, Options, parser, whole_number
from ddptop.trainers.rank.refusal import Refusal
from ddptop.trainers.rank.slowness import Slowness, delay
from ddptop.trainers.training.data import MNIST, Data, Normalized, length
from ddptop.trainers.training.loop import run
from ddptop.trainers.training.task import Task
from ddptop.trainers.training.technique import Technique
from ddptop.trainers.training.throughput import Throughput

GPU: Final = Defaults(device="GPU", epochs=3, batch_size=64, lr=0.05, samples=None, workers=0)
CPU: Final = Defaults(device="CPU", epochs=3, batch_size=32, lr=0.05, samples=12_800, workers=0)

PASSES: Final = 3
"""A step costs about three forward passes: backward is two, one for the inputs and one for the weights."""


def in_proportion(speeds: Sequence[float], total: int) -> list[int]:
    """Return whole shares of `total` in proportion to the speeds, at least one each; large remainders round up."""
    spare = total - len(speeds)
    exact = [spare * speed / sum(speeds) for speed in speeds]
    shares = [1 + int(share) for share in exact]
    by_remainder = sorted(range(len(speeds)), key=lambda rank: int(exact[rank]) - exact[rank])
    for rank in by_remainder[: total - sum(shares)]:
        shares[rank] += 1
    return shares


class Deal(Sampler[list[int]]):
    """Divides each global batch of a shuffled epoch among the ranks, by their shares at that time.

    All ranks shuffle alike and know all shares, so that every image goes to exactly one rank. The
    rest of an epoch, less than a global batch, is left out.
    """

    def __init__(self, images: int, shares: list[int], rank: int, seed: int) -> None:
        self.shares = shares
        """Images of a global batch by rank; may be changed between two batches."""
        self.dealt_at = 0.0
        """Time of the last draw, on the clock `time.perf_counter`."""
        self._images, self._rank, self._seed = images, rank, seed
        self._epoch = self._first = 0

    def begin(self, epoch: int, batch: int) -> None:
        """Continue with batch number `batch` of this epoch."""
        self._epoch, self._first = epoch, batch

    def __len__(self) -> int:
        """Return the number of global batches in an epoch."""
        return self._images // sum(self.shares)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the images of this rank, batch by batch."""
        order = torch.randperm(self._images, generator=torch.Generator().manual_seed(self._seed + self._epoch))
        for batch in range(self._first, len(self)):
            self.dealt_at = time.perf_counter()
            first = batch * sum(self.shares) + sum(self.shares[: self._rank])
            yield order[first : first + self.shares[self._rank]].tolist()


class DealtLoader:
    """The `Batches` of this rank's shares."""

    def __init__(self, data: Data, deal: Deal) -> None:
        self._deal = deal
        # Without workers, which draw ahead: the shares may change before the next batch.
        self._loader: DataLoader[Any] = DataLoader(data.train, batch_sampler=deal, num_workers=0)

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self._deal)

    def batches_in(self, images: int) -> int:
        """Return the number of global batches with this many images."""
        return images // sum(self._deal.shares)

    def begin(self, epoch: int, batch: int) -> None:
        """Let the next batches be those of this epoch, from this one on."""
        self._deal.begin(epoch, batch)

    def draw(self, batches: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Return the next batches."""
        return islice(self._loader, batches)


class Rebalanced(Technique):
    """DDP with shares of the global batch that follow the ranks' speed.

    Args:
        batch_size: images of a rank as long as all shares are equal.
        every: steps between two changes of the shares; None for equal shares throughout.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, position: Position, *, batch_size: int, every: int | None
    ) -> None:
        super().__init__(model, optimizer, position)
        self._shares = [batch_size] * position.world
        self._every = every
        self._weight = 0.0
        self._steps = self._images = 0
        self._worked_s = 0.0
        self._throughput = Throughput()
        self.ddp = DistributedDataParallel(model)
        self.ddp.register_comm_hook(None, self._weigh_and_sum)

    def loader(self, data: Data, options: Options) -> DealtLoader:
        """Return the source of this rank's share of each global batch."""
        self._deal = Deal(length(data.train), self._shares, self.position.rank, options.seed)
        return DealtLoader(data, self._deal)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Do one step on this rank's share, and every few steps change the shares."""
        self._weight = len(images) / sum(self._shares)
        agent.log(share=self._weight)
        self.optimizer.zero_grad()
        loss = cross_entropy(self.ddp(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        self._images += len(images)
        self._steps += 1
        if self._steps == self._every:
            self._share_anew()
        self.optimizer.step()
        self._throughput.add(len(images))
        return loss.detach()

    def _weigh_and_sum(self, _state, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations as objects
        """Turn a bucket of gradients, the mean over this rank's images, into the mean over the global batch."""
        if bucket.is_last():
            # All gradients of this rank are computed, and it has not waited for other ranks.
            self._worked_s += time.perf_counter() - self._deal.dealt_at
        summed = dist.all_reduce(bucket.buffer().mul_(self._weight), async_op=True)
        return summed.get_future().then(lambda future: future.value()[0])

    def _share_anew(self) -> None:
        """Give each rank images in proportion to its speed since the last time."""
        speed = torch.tensor([self._images / self._worked_s], device=self.position.device)
        speeds = [torch.empty_like(speed) for _ in self._shares]
        dist.all_gather(speeds, speed)
        self._shares[:] = in_proportion([each.item() for each in speeds], sum(self._shares))
        self._steps = self._images = 0
        self._worked_s = 0.0

    def note(self) -> str:
        """Return the shares by rank, and the throughput of all ranks together."""
        rate = self.position.total(self._throughput.since_last())[0]
        return f", {rate:,.0f} images/s, shares {' '.join(map(str, self._shares))} of {sum(self._shares)} images"


def model(asked: Options) -> nn.Module:
    """Return a small convolutional network; without batch normalization, where the sizes of shares would matter."""
    layers = nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten()
    net = nn.Sequential(*layers, nn.Linear(32 * 6 * 6, MNIST.classes))
    slow: Slowness | None = asked.slow
    if slow is not None and slow.rank == dist.get_rank():
        delay(net, lambda forward_s: (slow.amount - 1) * PASSES * forward_s)
    return net


def task(asked: Options) -> Task:
    """Return the task that the options describe."""
    if asked.workers:
        raise Refusal("--workers: batches drawn ahead of time would have the shares of an earlier step; leave it away")
    return Task(
        title="convolutional network, 1 -> 16 -> 32 -> 10",
        kind=MNIST,
        train_view=Normalized(MNIST),
        test_view=Normalized(MNIST),
        model=partial(model, asked),
        optimizer=SGD,
        log_every=100,
        technique=partial(Rebalanced, batch_size=asked.batch_size, every=None if asked.fixed else asked.every),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; return the exit code."""
    options = parser(CATALOGUE["rebalance"], GPU if torch.cuda.is_available() else CPU)
    balance = options.add_argument_group("balance")
    balance.add_argument(
        "--every", type=whole_number(1), default=10, metavar="N", help="steps between two changes (default %(default)s)"
    )
    balance.add_argument("--fixed", action="store_true", help="keep equal shares, for comparison")
    balance.add_argument(
        "--slow", type=Slowness.read, metavar="RANK:FACTOR", help="let a rank take so many times as long for an image"
    )
    return run(options, task, arguments)


if __name__ == "__main__":
    sys.exit(main())
