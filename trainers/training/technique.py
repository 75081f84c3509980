"""How the ranks become one training: what each does with its batch, one technique a class.

The usual one is here, the others in the programs that show them.  A technique knows nothing of
epochs, of what is in the images, or where checkpoints are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ddptop.trainers.rank.group import Position
from ddptop.trainers.rank.options import Options
from ddptop.trainers.rank.refusal import Refusal
from ddptop.trainers.training.data import Batches, Data, TrainingLoader


class Technique:
    """Takes optimizer steps, each on one batch of this rank; as it stands, without any other rank."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, position: Position) -> None:
        self.model = model
        self.net: nn.Module = model
        """What the forward pass goes through: the model, or what wraps it."""
        self.optimizer = optimizer
        self.position = position

    @property
    def share(self) -> Position:
        """Which of the images are this rank's; ranks that hold parts of one model have the same."""
        return self.position

    @property
    def coordinates(self) -> dict[str, int] | None:
        """Where this rank stands, by dimension; None where all ranks do the same."""
        return None

    def loader(self, data: Data, options: Options) -> Batches:
        """Return what draws the batches of this rank."""
        return TrainingLoader(data, options, self.share)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Take one step and return the mean loss of this rank's batch, detached."""
        self.optimizer.zero_grad()
        loss = cross_entropy(self.net(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        self.optimizer.step()
        return loss.detach()

    def scores(self, images: torch.Tensor) -> torch.Tensor:
        """Return what the model says of images, without training it."""
        scores: torch.Tensor = self.model(images)
        return scores

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return all that model and optimizer hold, whole on rank 0; every rank calls it."""
        return self.model.state_dict(), self.optimizer.state_dict()

    def load(self, model: dict[str, Any], optimizer: dict[str, Any]) -> None:
        """Take in what `state` returned on rank 0."""
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)

    def uneven(self) -> AbstractContextManager[None]:
        """Return what surrounds an epoch in which ranks may have different numbers of batches.

        Raises:
            Refusal: the technique has no answer to that.
        """
        raise Refusal("--uneven needs a program that trains by DDP as it is; leave it away")

    def note(self) -> str:
        """Return what is to be said of the epoch that just ended; empty for nothing."""
        return ""


class Replicas(Technique):
    """Every rank holds the whole model; DDP averages the gradients while backward still runs.

    Source: Li et al. 2020, PyTorch Distributed: Experiences on Accelerating Data Parallel Training.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, position: Position) -> None:
        super().__init__(model, optimizer, position)
        self.ddp = self.net = DistributedDataParallel(model)

    @contextmanager
    def uneven(self) -> Iterator[None]:
        """Let ranks that run out early answer the collectives of the others.

        Source: PyTorch tutorial, Distributed Training with Uneven Inputs Using the Join Context Manager.
        """
        with Join([self.ddp]):
            yield
        # In the end Join gives every rank the parameters of one that saw all steps, but not what its
        # optimizer remembers of them. Rank 0 is such a one: no rank has more batches.
        state = [self.optimizer.state_dict()]
        dist.broadcast_object_list(state, src=0, device=self.position.device)
        self.optimizer.load_state_dict(state[0])
