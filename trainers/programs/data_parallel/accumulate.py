"""A large batch in small pieces: gradients accumulated over several backward passes, synchronized once.

Technique: each rank cuts its batch into `--accumulate` micro-batches. All but the last run under
`no_sync`, where DDP only adds to the gradients; the last one starts the all-reduce. The sum of
losses is divided by the size of the whole batch, so the parameters are those of the large batch.
Then the gradients are clipped and the optimizer takes its one step, at a rate that warms up and decays.
Source: PyTorch documentation, DistributedDataParallel.no_sync; Goyal et al. 2017, Accurate, Large
Minibatch SGD (warm-up); Micikevicius et al. 2018, Mixed Precision Training.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer

from ddptop.trainers import CATALOGUE
from ddptop.trainers.rank.group import Position
from ddptop.trainers.rank.options import Defaults, Options, parser, positive_number, whole_number
from ddptop.trainers.training.data import MNIST, Normalized
from ddptop.trainers.training.loop import run
from ddptop.trainers.training.task import Task, warm_up_and_cosine
from ddptop.trainers.training.technique import Replicas

GPU: Final = Defaults(device="GPU", epochs=5, batch_size=256, lr=0.1, samples=None, workers=2)
CPU: Final = Defaults(device="CPU", epochs=3, batch_size=128, lr=0.1, samples=20_000, workers=0)


class Accumulated(Replicas):
    """DDP that synchronizes once for several backward passes."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, position: Position, *, pieces: int, clip: float, amp: bool
    ) -> None:
        super().__init__(model, optimizer, position)
        self._pieces = pieces
        self._clip = clip
        self._amp = amp

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Do one step on the whole batch."""
        self.optimizer.zero_grad()
        loss = torch.zeros((), device=images.device)
        micro_batches = list(zip(images.chunk(self._pieces), labels.chunk(self._pieces), strict=True))
        for number, (some_images, some_labels) in enumerate(micro_batches, start=1):
            with nullcontext() if number == len(micro_batches) else self.ddp.no_sync():
                # bfloat16 has the range of float32, so that no gradient has to be scaled.
                with torch.autocast(images.device.type, torch.bfloat16, enabled=self._amp):
                    scores = self.ddp(some_images)
                part = cross_entropy(scores.float(), some_labels, reduction="sum") / len(images)
                part.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
            loss += part.detach()
        nn.utils.clip_grad_norm_(self.ddp.parameters(), self._clip)
        self.optimizer.step()
        return loss


class Net(nn.Module):
    """One convolution and two linear layers; with batch normalization only over all ranks together.

    The statistics of a micro-batch differ from those of the batch, and would change the model.
    """

    def __init__(self, sync_batchnorm: bool) -> None:
        super().__init__()
        norm = SyncBatchNorm2d(16) if sync_batchnorm else nn.Identity()
        self.features = nn.Sequential(nn.Conv2d(1, 16, 5, stride=2, padding=2), norm, nn.ReLU(), nn.MaxPool2d(2))
        self.scores = nn.Sequential(nn.Linear(16 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, MNIST.classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores (batch, 10) of images (batch, 1, 28, 28)."""
        scores: torch.Tensor = self.scores(self.features(images).flatten(1))
        return scores


class SyncBatchNorm2d(nn.BatchNorm2d):
    """Batch normalization with the statistics of all ranks' batches, which torch has for GPUs only.

    Source: Zhang et al. 2018, Context Encoding for Semantic Segmentation, section 3.1.
    """

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the normalized features (batch, channels, height, width)."""
        if not self.training:
            return super().forward(features)
        features = features.float()
        count = features.new_full((1,), features.numel() / features.shape[1])
        sums = torch.cat([features.sum((0, 2, 3)), features.square().sum((0, 2, 3)), count])
        total, squares, count = _Sum.apply(sums).split([self.num_features, self.num_features, 1])
        mean, variance = total / count, squares / count - (total / count).square()
        with torch.no_grad():
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.momentum is not None
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
        scale = self.weight * (variance + self.eps).rsqrt()
        normalized: torch.Tensor = features * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]
        return normalized


class _Sum(torch.autograd.Function):
    """The sum over all ranks; in backward, the sum of all ranks' gradients goes to every rank."""

    @staticmethod
    def forward(ctx: object, tensor: torch.Tensor) -> torch.Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def task(asked: Options) -> Task:
    """Return the task that the options describe."""
    return Task(
        title="convolution and two linear layers" + (", SyncBatchNorm" if asked.sync_batchnorm else ""),
        kind=MNIST,
        train_view=Normalized(MNIST),
        test_view=Normalized(MNIST),
        model=partial(Net, asked.sync_batchnorm),
        optimizer=partial(SGD, momentum=0.9),
        schedule=warm_up_and_cosine,
        log_every=20,
        technique=partial(Accumulated, pieces=asked.accumulate, clip=asked.clip, amp=asked.amp),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; return the exit code."""
    options = parser(CATALOGUE["accumulate"], GPU if torch.cuda.is_available() else CPU)
    own = options.add_argument_group("technique")
    own.add_argument(
        "--accumulate", type=whole_number(1), default=4, metavar="N",
        help="micro-batches that each rank cuts its batch into (default %(default)s)",
    )  # fmt: skip
    own.add_argument(
        "--clip", type=positive_number, default=1.0, metavar="NORM",
        help="longest gradient, all parameters taken together (default %(default)s)",
    )  # fmt: skip
    own.add_argument("--sync-batchnorm", action="store_true", help="normalize with the statistics of all ranks")
    own.add_argument("--amp", action="store_true", help="mixed precision: the forward pass in bfloat16")
    return run(options, task, arguments)


if __name__ == "__main__":
    sys.exit(main())
