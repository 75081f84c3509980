"""Tensor parallelism: every weight matrix of a block is split, and each rank holds and computes a part.

Technique: of two consecutive layers the first is split by columns, the second by rows. Each rank
computes its part between them, some heads of attention or a part of the perceptron's wide middle, without the
others, and only the sum after the second layer needs an all-reduce: two
of them for a block in forward, two in backward, for any number of ranks. All ranks get the
same images; no rank holds all matrices of a block, but each holds all parameters outside of the blocks.
Source: Shoeybi et al. 2019, Megatron-LM; PyTorch tutorial, Large Scale Transformer model training
with Tensor Parallel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import AdamW, Optimizer

from ddptop.trainers import CATALOGUE
from ddptop.trainers.programs.model_parallel.transformer import HEADS, Transformer
from ddptop.trainers.rank.group import Position
from ddptop.trainers.rank.options import Defaults, Options, parser
from ddptop.trainers.rank.refusal import Refusal
from ddptop.trainers.training.data import MNIST, Normalized
from ddptop.trainers.training.loop import run
from ddptop.trainers.training.task import Task
from ddptop.trainers.training.technique import Technique

GPU: Final = Defaults(device="GPU", epochs=5, batch_size=256, lr=0.001, samples=None, workers=2)
CPU: Final = Defaults(device="CPU", epochs=3, batch_size=32, lr=0.003, samples=3_200, workers=0)


def split(model: Transformer, mesh: DeviceMesh) -> Transformer:
    """Return the model with only this rank's part of each block.

    Raises:
        Refusal: the heads cannot be shared evenly.
    """
    if HEADS % mesh.size():
        fitting = ", ".join(str(ranks) for ranks in range(1, HEADS + 1) if HEADS % ranks == 0)
        raise Refusal(f"{HEADS} heads cannot be shared by {mesh.size()} ranks; choose one of {fitting}")
    for block in model.blocks:
        parallelize_module(
            block,
            mesh,
            {
                "attention.heads": ColwiseParallel(),
                "attention.mix": RowwiseParallel(),
                "perceptron.up": ColwiseParallel(),
                "perceptron.down": RowwiseParallel(),
            },
        )
    return model


class Split(Technique):
    """One model in parts, one on each rank; its all-reduces are inside of forward and backward."""

    @property
    def share(self) -> Position:
        """All images: the ranks are one replica."""
        return replace(self.position, rank=0, world=1)

    @property
    def coordinates(self) -> dict[str, int]:
        """The number of this rank's part of the model."""
        return {"tensor": self.position.rank}

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the state of the whole model and optimizer, gathered from all parts."""
        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_state_dict(self.model, self.optimizer, options=whole)

    def load(self, model: dict[str, Any], optimizer: dict[str, Any]) -> None:
        """Load this rank's part of the state of a whole model and optimizer."""
        whole = StateDictOptions(full_state_dict=True)
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer, options=whole)


def task(asked: Options) -> Task:
    """Return the task; it has no options of its own."""
    mesh = init_device_mesh(device_type(), (dist.get_world_size(),), mesh_dim_names=("tensor",))
    return transformer_task(mesh, Split)


def transformer_task(mesh: DeviceMesh, technique: Callable[[nn.Module, Optimizer, Position], Technique]) -> Task:
    """Return the training of a transformer that is split over a mesh."""
    return Task(
        title="vision transformer, 2 blocks of 12 heads",
        kind=MNIST,
        train_view=Normalized(MNIST),
        test_view=Normalized(MNIST),
        model=lambda: split(Transformer(MNIST.size, MNIST.classes), mesh),
        # One tensor at a time: one call cannot have whole parameters and parts of others.
        optimizer=lambda parameters, lr: AdamW(parameters, lr, foreach=False),
        log_every=50,
        technique=technique,
    )


def device_type() -> str:
    """Return the type of the ranks' device, in torch's spelling."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; return the exit code."""
    return run(parser(CATALOGUE["tensor"], GPU if torch.cuda.is_available() else CPU), task, arguments)


if __name__ == "__main__":
    sys.exit(main())
