"""One parameter, two ranks: an all-reduce of gradients that can be checked in one's head.

Technique: each rank has its own input x (its rank) and the loss (parameter - x)**2. At 2.0 the
gradients are 4 and 2; their sum 6 times the learning rate 0.1 moves both copies to 1.4, and
their mean 3 to 1.7, which is the step that one process with both inputs would take.
Source: PyTorch tutorial, Writing Distributed Applications with PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

import ddptop.agent as agent
from ddptop.trainers import CATALOGUE
from ddptop.trainers.rank.group import Position, say
from ddptop.trainers.rank.options import Options, group_parser, positive_number, whole_number
from ddptop.trainers.rank.start import run


def train(asked: Options, position: Position) -> None:
    """Train the one parameter."""
    parameter = nn.Parameter(torch.tensor(2.0, device=position.device))
    optimizer = SGD([parameter], lr=asked.lr)
    agent.start(total_steps=asked.steps)
    for step in range(1, (asked.steps or 0) + 1):
        optimizer.zero_grad()
        loss = (parameter - position.rank) ** 2
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        assert parameter.grad is not None
        own = parameter.grad.item()

        dist.all_reduce(parameter.grad)
        if asked.reduce == "mean":
            parameter.grad /= position.world

        reduced = parameter.grad.item()
        agent.log(loss=loss.item(), lr=asked.lr, parameter=parameter.item(), gradient=own)
        optimizer.step()
        say(
            f"rank {position.rank}, step {step}: loss {loss.item():.4g}, gradient {own:.4g}, "
            f"{asked.reduce} over all ranks {reduced:.4g}, parameter {parameter.item():.4g}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; return the exit code."""
    parser = group_parser(CATALOGUE["toy"])
    training = parser.add_argument_group("training")
    training.add_argument(
        "--steps", type=whole_number(1), default=20, metavar="N", help="optimizer steps (default %(default)s)"
    )
    training.add_argument("--lr", type=positive_number, default=0.1, help="learning rate (default %(default)s)")
    training.add_argument(
        "--reduce", choices=("sum", "mean"), default="sum",
        help="what the all-reduce makes of the gradients (default %(default)s)",
    )  # fmt: skip
    return run(parser, train, arguments)


if __name__ == "__main__":
    sys.exit(main())
