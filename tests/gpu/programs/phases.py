"""Trains under DDP with marked phases: batches from pinned and from pageable memory, one device-bound net."""

from __future__ import annotations

import torch
from support.gpu.measuring import Rank, network, span

WARMUP = 40
"""So many that torch has pinned memory for all numbers that are on their way to the agent at a time."""
STEPS = 12
"""Of each kind of memory."""


def main() -> None:
    """Report the trace of the last steps and the agent's records of them."""
    rank = Rank()
    width, rows = (4096, 2048) if rank.on_cuda else (256, 256)
    model = rank.wrapped(network(width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    pageable = torch.randn(rows, width)
    batches = [pageable.pin_memory() if rank.on_cuda else pageable.clone(), pageable]

    def step(batch: torch.Tensor) -> None:
        with span("copy"):
            images = batch.to(rank.device, non_blocking=batch is not pageable)
        with span("forward"):
            loss = model(images).square().mean()
        with span("backward"):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARMUP):
        step(batches[0])
    rank.idle()

    def run() -> None:
        for batch in batches:
            for _ in range(STEPS):
                with span("step"):
                    step(batch)

    trace = rank.profiled(run)
    rank.report(trace=trace, records=rank.records(WARMUP + 2 * STEPS)[WARMUP:])


main()
