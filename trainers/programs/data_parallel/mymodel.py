"""Two convolutions on CIFAR-10, in one process for all GPUs or in one process for each.

Technique: nn.DataParallel splits a batch among the GPUs of one process. In each step it copies
the model to all of them, runs them in threads that share one interpreter lock, and gathers
outputs and gradients on the first GPU, which so computes and stores more than the others. DDP has a
process for each GPU, where the model stays, and transfers only the gradients, during backward.
Source: PyTorch tutorial, Getting Started with Distributed Data Parallel (its comparison of both);
the network is that of the tutorial Training a Classifier with wider layers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import torch
from torch import nn
from torch.nn.functional import max_pool2d, relu
from torch.optim import Adam, Optimizer

from ddptop.trainers import CATALOGUE
from ddptop.trainers.rank.group import Position
from ddptop.trainers.rank.options import Defaults, Options, parser
from ddptop.trainers.rank.refusal import Refusal
from ddptop.trainers.training.data import CIFAR10, Normalized
from ddptop.trainers.training.loop import run
from ddptop.trainers.training.task import Task
from ddptop.trainers.training.technique import Replicas, Technique

GPU: Final = Defaults(device="GPU", epochs=5, batch_size=64, lr=0.001, samples=None, workers=2)
CPU: Final = Defaults(device="CPU", epochs=3, batch_size=32, lr=0.001, samples=6400, workers=0)


class MyModel(nn.Module):
    """Two 3x3 convolutions, each with pooling, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, kernel_size=3)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3)
        self.hidden = nn.Linear(64 * 6 * 6, 128)
        self.scores = nn.Linear(128, CIFAR10.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores (batch, 10) of images (batch, 3, 32, 32)."""
        features = max_pool2d(relu(self.conv1(images)), 2)  # 32 -> 30 -> 15
        features = max_pool2d(relu(self.conv2(features)), 2)  # 15 -> 13 -> 6
        scores: torch.Tensor = self.scores(relu(self.hidden(features.flatten(1))))
        return scores


class OneProcess(Technique):
    """nn.DataParallel: one process drives all GPUs it sees; without a GPU it is the plain model."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, position: Position) -> None:
        super().__init__(model, optimizer, position)
        if position.world > 1:
            raise Refusal(
                f"--parallel data-parallel is one process, not {position.world}: give --world 1 to ddptop launch"
            )
        # It scatters the images, and gathers the scores on the first GPU.
        self.net = nn.DataParallel(model)


def task(asked: Options) -> Task:
    """Return the task that the options describe."""
    return Task(
        title="MyModel, two convolutions",
        kind=CIFAR10,
        train_view=Normalized(CIFAR10),
        test_view=Normalized(CIFAR10),
        model=MyModel,
        optimizer=Adam,
        log_every=50,
        technique=OneProcess if asked.parallel == "data-parallel" else Replicas,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; return the exit code."""
    options = parser(CATALOGUE["mymodel"], GPU if torch.cuda.is_available() else CPU)
    options.add_argument_group("technique").add_argument(
        "--parallel", choices=("ddp", "data-parallel"), default="ddp",
        help="a process for each part of the batch, or one for all (default %(default)s)",
    )  # fmt: skip
    return run(options, task, arguments)


if __name__ == "__main__":
    sys.exit(main())
