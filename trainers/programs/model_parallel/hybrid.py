"""Data parallel times tensor parallel: the ranks form a grid, in which rows share a model and columns a part of it.

Technique: the ranks of a row hold one model together (`tensor`), and get the same images; the rows
are replicas, and get different ones. After backward each rank averages its gradients with the ranks
that hold the same part in the other rows. A row belongs inside one machine, where links are fast enough for
two all-reduces a block; columns go across machines, with one all-reduce a step.
Source: Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM; PyTorch recipe, Getting Started with DeviceMesh.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from ddptop.trainers import CATALOGUE
from ddptop.trainers.programs.model_parallel.tensor import CPU, GPU, Split, device_type, transformer_task
from ddptop.trainers.rank.group import Position
from ddptop.trainers.rank.options import Options, parser, whole_number
from ddptop.trainers.rank.refusal import Refusal
from ddptop.trainers.training.loop import run
from ddptop.trainers.training.task import Task


class Grid(Split):
    """Replicas of a model in parts."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, position: Position, *, mesh: DeviceMesh) -> None:
        super().__init__(model, optimizer, position)
        self._mesh = mesh

    @property
    def share(self) -> Position:
        """The images of this rank's row."""
        return replace(self.position, rank=self.coordinates["data"], world=self._mesh["data"].size())

    @property
    def coordinates(self) -> dict[str, int]:
        """Row and column of this rank."""
        return {name: self._mesh.get_local_rank(name) for name in ("data", "tensor")}

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Do one step: the row has its all-reduces inside of forward and backward, the column after them."""
        self.optimizer.zero_grad()
        loss = cross_entropy(self.model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        self._average()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def _average(self) -> None:
        """Average the gradients with the ranks that hold the same part, in one all-reduce."""
        replicas = self._mesh["data"]
        gradients = [_own(parameter.grad) for parameter in self.model.parameters() if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=replicas.get_group())
        flat /= replicas.size()
        for gradient, mean in zip(gradients, torch.split(flat, [each.numel() for each in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))


def _own(gradient: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a gradient, or all of one that is not split."""
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def task(asked: Options) -> Task:
    """Return the task that the options describe.

    Raises:
        Refusal: the ranks do not form a grid with such rows.
    """
    world = dist.get_world_size()
    columns: int = asked.tensor or (1 if world % 2 else 2)
    if world % columns:
        raise Refusal(f"{world} ranks do not make rows of {columns}; give --tensor a divisor of {world}")
    mesh = init_device_mesh(device_type(), (world // columns, columns), mesh_dim_names=("data", "tensor"))
    return transformer_task(mesh["tensor"], partial(Grid, mesh=mesh))


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; return the exit code."""
    options = parser(CATALOGUE["hybrid"], GPU if torch.cuda.is_available() else CPU)
    options.add_argument_group("grid").add_argument(
        "--tensor", type=whole_number(1), metavar="N",
        help="ranks that hold one model together, a row; there are as many rows as fit (default 2; 1 for an odd world)",
    )  # fmt: skip
    return run(options, task, arguments)


if __name__ == "__main__":
    sys.exit(main())
