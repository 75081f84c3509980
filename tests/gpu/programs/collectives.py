"""Trains, and does all-reduces of several sizes, each timed by events of the program's own."""

from __future__ import annotations

import torch
import torch.distributed as dist
from support.gpu.measuring import Rank, network, timed

WARMUP = 4
STEPS = 12
SIZES = (1, 16, 64)
"""MiB of an all-reduce."""


def main() -> None:
    """Report the program's own times in us, by step, and the agent's records."""
    rank = Rank()
    model = rank.wrapped(network(256))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(64, 256, device=rank.device)
    blocks = [torch.ones(size << 18, device=rank.device) for size in SIZES]
    reads = []
    for _ in range(WARMUP + STEPS):
        model(batch).square().mean().backward()
        # Events are on the training's stream, so that nothing but the all-reduce may be between them.
        rank.idle()
        dist.barrier()
        row = []
        for block in blocks:
            with timed(rank.on_cuda) as read:
                dist.all_reduce(block)
            row.append(read)
            rank.idle()
        reads.append(row)
        optimizer.step()
        optimizer.zero_grad()
    rank.idle()
    times = [[read() for read in row] for row in reads]
    rank.report(times=times[WARMUP:], records=rank.records(WARMUP + STEPS)[WARMUP:])


main()
