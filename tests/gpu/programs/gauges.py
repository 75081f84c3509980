"""Takes memory, keeps the device busy, and tells what the agent says of both."""

from __future__ import annotations

import time

import torch
from support.gpu.measuring import Rank, network

BUSY_S = 4.0


def main() -> None:
    """Report the agent's numbers while the device is busy, and torch's own of the memory."""
    rank = Rank()
    taken = torch.ones((1 << 30 if rank.on_cuda else 1 << 26) // 4, device=rank.device)
    model = rank.wrapped(network(4096 if rank.on_cuda else 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(256, 4096 if rank.on_cuda else 128, device=rank.device)
    until, facts = time.monotonic() + BUSY_S, []
    while time.monotonic() < until:
        for _ in range(20):
            model(batch).square().mean().backward()
            optimizer.step()
        rank.idle()
        facts.append(rank.facts())
    rank.report(
        seen=facts[-1],
        loads=[each.get("device_percent") for each in facts],
        reserved=torch.cuda.memory_reserved() if rank.on_cuda else None,
        taken=taken.nbytes,
    )


main()
