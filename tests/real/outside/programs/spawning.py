"""Ranks by `mp.spawn`: their numbers are arguments, and in no environment."""

import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank: int, store: str) -> None:
    """Train for ever."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    os.write(1, f"rank {dist.get_rank()} is {os.getpid()}\n".encode())
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    while True:
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        time.sleep(0.05)


if __name__ == "__main__":
    import sys

    mp.spawn(  # type: ignore[attr-defined]
        train, (sys.argv[1],), nprocs=2
    )
