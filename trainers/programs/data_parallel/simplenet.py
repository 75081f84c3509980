"""One linear layer on MNIST: the smallest data parallel training.

Technique: 7,850 parameters fit one gradient bucket, so a step has one all-reduce, and most of
its time is communication.
Source: PyTorch tutorial, Getting Started with Distributed Data Parallel; the data set and the
linear classifier are those of LeCun et al. 1998, Gradient-Based Learning Applied to Document Recognition.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import torch
from torch import nn
from torch.optim import SGD

from ddptop.trainers import CATALOGUE
from ddptop.trainers.rank.options import Defaults, Options, parser
from ddptop.trainers.training.data import MNIST, Normalized
from ddptop.trainers.training.loop import run
from ddptop.trainers.training.task import Task

GPU: Final = Defaults(device="GPU", epochs=5, batch_size=64, lr=0.01, samples=None, workers=2)
CPU: Final = Defaults(device="CPU", epochs=5, batch_size=64, lr=0.01, samples=None, workers=0)


class SimpleNet(nn.Module):
    """A linear classifier of 28 by 28 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(MNIST.size * MNIST.size, MNIST.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores (batch, 10) of images (batch, 1, 28, 28)."""
        scores: torch.Tensor = self.linear(images.flatten(1))
        return scores


def task(asked: Options) -> Task:
    """Return the task; it has no options of its own."""
    return Task(
        title="SimpleNet, 28*28 -> 10",
        kind=MNIST,
        train_view=Normalized(MNIST),
        test_view=Normalized(MNIST),
        model=SimpleNet,
        optimizer=SGD,
        log_every=100,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; return the exit code."""
    return run(parser(CATALOGUE["simplenet"], GPU if torch.cuda.is_available() else CPU), task, arguments)


if __name__ == "__main__":
    sys.exit(main())
