"""Trains under DDP from a seed; the trace of some steps and all losses show what the agent changes, and what not."""

from __future__ import annotations

import torch
from support.gpu.measuring import Rank, network, span

WARMUP = 12
STEPS = 10


def main() -> None:
    """Report trace, losses and the final parameters' sum of bits."""
    rank = Rank()
    model = rank.wrapped(network(512 if rank.on_cuda else 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    width = 512 if rank.on_cuda else 64
    batch = torch.randn(64, width)
    batch = batch.pin_memory() if rank.on_cuda else batch
    losses: list[torch.Tensor] = []

    def steps(count: int) -> None:
        for _ in range(count):
            with span("step"):
                loss = model(batch.to(rank.device, non_blocking=True)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.detach())

    steps(WARMUP)
    rank.idle()
    trace = rank.profiled(lambda: steps(STEPS))
    bits = [int(each.detach().cpu().view(torch.int32).to(torch.int64).sum()) for each in model.parameters()]
    rank.report(trace=trace, losses=[loss.item() for loss in losses], bits=bits)


main()
