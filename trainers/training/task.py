"""The task that a program gives to the training loop, the plan of its steps, and its outcome.

These are plain values, with their text for a log line; this module does not train.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from ddptop.trainers.rank.group import Position
from ddptop.trainers.rank.options import Options
from ddptop.trainers.training.data import Kind
from ddptop.trainers.training.synthetic import View
from ddptop.trainers.training.technique import Replicas, Technique


def constant(progress: float) -> float:
    """Leave the learning rate as it is."""
    return 1.0


def warm_up_and_cosine(progress: float) -> float:
    """Warm up over the first tenth of the training, then fall as a half cosine to zero."""
    warm_up = 0.1
    if progress < warm_up:
        return 0.1 + 0.9 * progress / warm_up
    return 0.5 * (1 + math.cos(math.pi * (progress - warm_up) / (1 - warm_up)))


@dataclass(frozen=True)
class Task:
    """A model, its data and its optimizer."""

    title: str
    """The model in words; a checkpoint can be resumed only under the same title."""
    kind: Kind
    train_view: View
    test_view: View
    model: Callable[[], nn.Module]
    optimizer: Callable[[Iterable[nn.Parameter], float], Optimizer]
    log_every: int
    """Batches between two log lines of a rank."""
    schedule: Callable[[float], float] = constant
    """Factor of the learning rate at a progress of 0 to 1: a function without state, so that a
    resumed run needs none."""
    technique: Callable[[nn.Module, Optimizer, Position], Technique] = Replicas
    """How the ranks train the model together."""


@dataclass
class Progress:
    """The progress of a training, which a checkpoint stores."""

    epoch: int = 0
    """Epochs completed."""
    step: int = 0
    """Optimizer steps completed or, during a step, its number."""
    images: int = 0
    """Images of the current epoch on which the model was trained, over all ranks."""


@dataclass(frozen=True)
class Plan:
    """The length of a training, counted from its beginning, also where it is resumed."""

    steps_per_epoch: int
    epochs: int
    steps: int

    @classmethod
    def of(cls, options: Options, steps_per_epoch: int, epoch: int, step: int, batch: int = 0) -> Plan:
        """Return the plan that ends with the first of `--epochs` and `--steps`.

        Args:
            epoch: Epochs completed, perhaps with another number of ranks and so of steps each.
            step: Steps completed.
            batch: Number of these steps that belong to an incomplete epoch.
        """
        begun = step - batch
        epochs = options.epochs
        if epochs is None:
            left = max((options.steps or 0) - begun, 0)
            epochs = epoch - (-left // steps_per_epoch) if options.steps else options.usual_epochs
        steps = max(step, begun + max(epochs - epoch, 0) * steps_per_epoch)
        return cls(steps_per_epoch, epochs, min(steps, options.steps or steps))


@dataclass(frozen=True)
class Evaluation:
    """Loss and accuracy of a model on the test pictures, over all ranks."""

    loss: float
    accuracy: float
    """Share of the pictures that were classified correctly, 0 to 1."""
    pictures: int


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    steps: int
    losses: tuple[float, ...]
    """Mean training loss of each epoch of this run, over all ranks; empty if nothing was left to train."""
    evaluation: Evaluation
    data: str
    """Title of the data set."""
    seconds: float

    def summary(self) -> str:
        """Return the closing line."""
        loss = " -> ".join(f"{loss:.4f}" for loss in dict.fromkeys((*self.losses[:1], *self.losses[-1:])))
        return (
            f"{self.steps} steps, training loss {loss or 'none, no step was left'}, "
            f"test loss {self.evaluation.loss:.4f}, accuracy {self.evaluation.accuracy:.1%} "
            f"of {self.evaluation.pictures:,} images, data {self.data}, {self.seconds:.1f} s"
        )
