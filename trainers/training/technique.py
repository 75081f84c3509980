"""Techniques, by which the ranks train one model together: a class for each says what a rank does with its batch.

The usual technique is here, others are in the programs that show them.  A technique knows nothing of
epochs, of the content of images, or of checkpoint files.
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
    """Does optimizer steps, each on one batch of this rank; this base class does so without other ranks."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, position: Position) -> None:
        self.model = model
        self.net: nn.Module = model
        """The module of the forward pass: the model, or a wrapper of it."""
        self.optimizer = optimizer
        self.position = position

    @property
    def share(self) -> Position:
        """The position that determines this rank's images; ranks that hold parts of one model have the same one."""
        return self.position

    @property
    def coordinates(self) -> dict[str, int] | None:
        """Position of this rank by dimension of the mesh; None where all ranks do the same."""
        return None

    def loader(self, data: Data, options: Options) -> Batches:
        """Return the source of this rank's batches."""
        return TrainingLoader(data, options, self.share)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Do one step and return the mean loss of this rank's batch, detached."""
        self.optimizer.zero_grad()
        loss = cross_entropy(self.net(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        self.optimizer.step()
        return loss.detach()

    def scores(self, images: torch.Tensor) -> torch.Tensor:
        """Return the model's scores of images, without training it."""
        scores: torch.Tensor = self.model(images)
        return scores

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the state of model and optimizer, which is complete on rank 0; every rank calls this."""
        return self.model.state_dict(), self.optimizer.state_dict()

    def load(self, model: dict[str, Any], optimizer: dict[str, Any]) -> None:
        """Load a result of `state` on rank 0."""
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)

    def uneven(self) -> AbstractContextManager[None]:
        """Return the context of an epoch in which ranks may have different numbers of batches.

        Raises:
            Refusal: the technique does not support that.
        """
        raise Refusal("--uneven needs a program that trains by DDP as it is; leave it away")

    def note(self) -> str:
        """Return a text on the last epoch for its log line, empty for none."""
        return ""


class Replicas(Technique):
    """Every rank has the whole model; DDP averages the gradients while backward still runs.

    Source: Li et al. 2020, PyTorch Distributed: Experiences on Accelerating Data Parallel Training.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, position: Position) -> None:
        super().__init__(model, optimizer, position)
        self.ddp = self.net = DistributedDataParallel(model)

    @contextmanager
    def uneven(self) -> Iterator[None]:
        """Let ranks that have no more batches join the collectives of the others.

        Source: PyTorch tutorial, Distributed Training with Uneven Inputs Using the Join Context Manager.
        """
        with Join([self.ddp]):
            yield
        # At its end Join gives every rank the parameters of a rank that did all steps, but not the state of its
        # optimizer. Rank 0 is such a rank: no rank has more batches.
        state = [self.optimizer.state_dict()]
        dist.broadcast_object_list(state, src=0, device=self.position.device)
        self.optimizer.load_state_dict(state[0])
