"""Two convolutions with batch normalization on MNIST: the first DDP program of many.

Technique: the plain training loop plus four lines: join the group, wrap the model, give each rank
its share of the data, and print once. Batch normalization adds a second collective: DDP
broadcasts rank 0's running statistics before each forward.
Source: Y. Yang 2019, Distributed data parallel training in PyTorch; Ioffe and Szegedy 2015, Batch Normalization.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import torch
from torch import nn
from torch.optim import SGD

from ddptop.trainers import CATALOGUE
from ddptop.trainers.rank.options import Defaults, Options, parser
from ddptop.trainers.training.data import MNIST, Normalized
from ddptop.trainers.training.loop import Training, run
from ddptop.trainers.training.task import Outcome, Task

GPU: Final = Defaults(device="GPU", epochs=2, batch_size=100, lr=1e-4, samples=None, workers=2)
CPU: Final = Defaults(device="CPU", epochs=2, batch_size=100, lr=1e-4, samples=20_000, workers=0)


class ConvNet(nn.Module):
    """Two layers of 5x5 convolution, batch normalization and pooling, and a linear one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(_layer(1, 16), _layer(16, 32))
        self.scores = nn.Linear(7 * 7 * 32, MNIST.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores (batch, 10) of images (batch, 1, 28, 28)."""
        scores: torch.Tensor = self.scores(self.layers(images).flatten(1))
        return scores


def _layer(channels: int, features: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, features, kernel_size=5, padding=2), nn.BatchNorm2d(features), nn.ReLU(), nn.MaxPool2d(2)
    )


def task(_: Options) -> Task:
    """Return the task; it has no options of its own."""
    return Task(
        title="ConvNet, two 5x5 convolutions with batch normalization",
        kind=MNIST,
        train_view=Normalized(MNIST),
        test_view=Normalized(MNIST),
        model=ConvNet,
        optimizer=SGD,
        log_every=100,
    )


def closing(outcome: Outcome, training: Training) -> None:
    """Print the duration, as the source does."""
    training.position.say(f"Training complete in: {timedelta(seconds=round(outcome.seconds))}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; return the exit code."""
    return run(parser(CATALOGUE["convnet"], GPU if torch.cuda.is_available() else CPU), task, arguments, closing)


if __name__ == "__main__":
    sys.exit(main())
