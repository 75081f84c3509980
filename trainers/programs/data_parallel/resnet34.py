"""A ResNet-34 from its blocks, with the gradients averaged by hand after backward.

Technique: what DDP does, taken apart. The weights of rank 0 are broadcast once; after backward
one all-reduce sums the gradients of all ranks and a division yields their mean. With `--sync` that
all-reduce goes by way of rank 0, around a ring, through the backend, or is left to DDP, which
overlaps it with backward. The losses are the same; the time per step differs.
Source: He et al. 2015, Deep Residual Learning for Image Recognition; Li et al. 2020, PyTorch
Distributed, section 3 (from naive to overlapped); Loshchilov and Hutter 2017 (AdamW).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, relu
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

import ddptop.agent as agent
from ddptop.trainers import CATALOGUE
from ddptop.trainers.handmade import naive, ring
from ddptop.trainers.programs.data_parallel.resnet import views
from ddptop.trainers.rank.group import Position
from ddptop.trainers.rank.options import Defaults, Options, parser, whole_number
from ddptop.trainers.training import checkpoint
from ddptop.trainers.training.data import CIFAR10
from ddptop.trainers.training.loop import Training, run
from ddptop.trainers.training.task import Outcome, Task
from ddptop.trainers.training.technique import Technique

GPU: Final = Defaults(device="GPU", epochs=10, batch_size=128, lr=0.001, samples=None, workers=4)
GPU_WIDTH: Final = 64
CPU: Final = Defaults(device="CPU", epochs=3, batch_size=16, lr=0.001, samples=1920, workers=0)
CPU_WIDTH: Final = 16

ALL_REDUCES: Final[dict[str, Callable[[torch.Tensor], object]]] = {
    "naive": naive.all_reduce,
    "ring": ring.all_reduce,
    "native": dist.all_reduce,
}


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut around them; the first may halve the picture."""

    def __init__(self, channels: int, features: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, features, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(features)
        self.conv2 = nn.Conv2d(features, features, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(features)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != features:
            convolution = nn.Conv2d(channels, features, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(features))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return what the block adds to its input, and the input."""
        added = self.norm2(self.conv2(relu(self.norm1(self.conv1(features)))))
        return relu(added + self.shortcut(features))


class ResNet34(nn.Module):
    """Four stages of 3, 4, 6 and 3 blocks: with the first and the last layer 34 that have weights.

    Args:
        width: features of the first stage, 64 in the paper; each later one doubles it.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        blocks = []
        channels = width
        for stage, depth in enumerate((3, 4, 6, 3)):
            for number in range(depth):
                stride = 2 if stage > 0 and number == 0 else 1
                blocks.append(Block(channels, width << stage, stride))
                channels = width << stage
        self.blocks = nn.Sequential(*blocks)
        self.scores = nn.Linear(channels, CIFAR10.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores (batch, 10) of images (batch, 3, side, side)."""
        scores: torch.Tensor = self.scores(self.blocks(self.stem(images)).mean((2, 3)))
        return scores


class Timed(Technique):
    """A step whose three parts are timed; this base class does it without other ranks."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, position: Position) -> None:
        super().__init__(model, optimizer, position)
        self._times: list[tuple[float, float, float]] = []

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Take one step."""
        self.optimizer.zero_grad(set_to_none=False)
        begin = self._now()
        loss = cross_entropy(self.net(images), labels)
        forward_done = self._now()
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        backward_done = self._now()
        self.sync()
        synced = self._now()
        self._note(forward_done - begin, backward_done - forward_done, synced - backward_done)
        self.optimizer.step()
        return loss.detach()

    def sync(self) -> None:
        """Average the gradients of all ranks."""

    def note(self) -> str:
        """Return the median times of the epoch's steps, on this rank."""
        forward, backward, sync = (statistics.median(times) * 1e3 for times in zip(*self._times, strict=True))
        self._times.clear()
        return f", a step: forward {forward:.1f} ms, backward {backward:.1f} ms, sync {sync:.1f} ms"

    def _note(self, forward: float, backward: float, sync: float) -> None:
        self._times.append((forward, backward, sync))
        agent.log(forward_ms=forward * 1e3, backward_ms=backward * 1e3, sync_ms=sync * 1e3)

    def _now(self) -> float:
        # A GPU works asynchronously: without a wait for it, only the launches would be timed.
        if self.position.device.type == "cuda":
            torch.cuda.synchronize(self.position.device)
        return time.perf_counter()


class HandSynced(Timed):
    """Averages the gradients after backward, in one all-reduce."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, position: Position, *, sync: str) -> None:
        super().__init__(model, optimizer, position)
        self._all_reduce = ALL_REDUCES[sync]
        # Point to point, gloo supports only tensors on the CPU.
        self._by_way_of_cpu = position.backend == "gloo" and sync != "native"
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)
        # The gradients are views of one tensor, so that one all-reduce sums all of them without a copy.
        parameters = list(model.parameters())
        sizes = [parameter.numel() for parameter in parameters]
        self._gradients = torch.zeros(sum(sizes), device=position.device)
        for parameter, view in zip(parameters, torch.split(self._gradients, sizes), strict=True):
            parameter.grad = view.view_as(parameter)

    def sync(self) -> None:
        """Sum and divide."""
        total = self._gradients.cpu() if self._by_way_of_cpu else self._gradients
        self._all_reduce(total)
        self._gradients.copy_(total / self.position.world)


class DdpSynced(Timed):
    """Averages the gradients by DDP, which sums them in buckets while backward computes them."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, position: Position) -> None:
        super().__init__(model, optimizer, position)
        self.net = DistributedDataParallel(model)


def task(asked: Options) -> Task:
    """Return the task that the options describe."""
    train_view, test_view = views(CIFAR10.size)
    return Task(
        title=f"ResNet-34 from its blocks, width {asked.width}",
        kind=CIFAR10,
        train_view=train_view,
        test_view=test_view,
        model=partial(ResNet34, asked.width),
        optimizer=AdamW,
        log_every=20,
        technique=DdpSynced if asked.sync == "ddp" else partial(HandSynced, sync=asked.sync),
    )


def closing(outcome: Outcome, training: Training) -> None:
    """Save the weights where the options say so."""
    path = training.asked.save
    if path is not None and training.position.first:
        training.position.say(f"state dict saved to {checkpoint.write(path, training.model.state_dict())}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; return the exit code."""
    on_gpu = torch.cuda.is_available()
    options = parser(CATALOGUE["resnet34"], GPU if on_gpu else CPU)
    own = options.add_argument_group("technique")
    own.add_argument(
        "--sync", choices=(*ALL_REDUCES, "ddp"), default="ring",
        help="who sums the gradients: rank 0, a ring, the backend's all-reduce, or DDP (default %(default)s)",
    )  # fmt: skip
    own.add_argument(
        "--width", type=whole_number(1, 512), default=GPU_WIDTH if on_gpu else CPU_WIDTH, metavar="N",
        help="features of the first stage, 64 in the paper (default %(default)s)",
    )  # fmt: skip
    own.add_argument("--save", type=Path, metavar="FILE", help="write the state dict of the trained model there")
    return run(options, task, arguments, closing)


if __name__ == "__main__":
    sys.exit(main())
