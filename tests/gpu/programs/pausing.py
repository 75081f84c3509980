"""Trains a given number of steps, with a short timeout of its collectives."""

from __future__ import annotations

import time

import torch
from support.gpu.measuring import Rank, network

PACE_S = 0.02


def main() -> None:
    """Train; the last line says that it got to its end."""
    rank = Rank(("steps", int, 400), ("timeout", float, 20.0))
    model = rank.wrapped(network(64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(rank.options.steps):
        model(torch.randn(8, 64).to(rank.device)).square().mean().backward()
        optimizer.step()
        time.sleep(PACE_S)
    rank.idle()
    print(f"rank {rank.rank} has trained to its end", flush=True)
    torch.distributed.destroy_process_group()


main()
