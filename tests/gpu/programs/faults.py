"""Trains, and fails on the last rank as GPUs make programs fail: `out-of-memory`, `assert` or `illegal`.

On the CPU `out-of-memory` takes more than there is as well; the others raise what torch would raise.
"""

from __future__ import annotations

from typing import Any

import torch
from support.gpu.measuring import Rank, network

AT = 5


def fill(rank: Rank) -> None:
    """Take memory until there is none."""
    held = []
    while True:
        held.append(torch.empty(1 << (33 if rank.on_cuda else 60), dtype=torch.uint8, device=rank.device))


def look_up(rank: Rank) -> None:
    """Index beyond the end of a table: the kernel's own assertion fails."""
    table = torch.nn.Embedding(8, 4).to(rank.device)
    lost: Any = table(torch.tensor([9], device=rank.device)).sum()
    print(lost.item())


def stray(rank: Rank) -> None:
    """Write to an address that nobody has."""
    import triton
    import triton.language as tl

    # Triton reads annotations as a part of the kernel, and refuses those of other modules.
    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def write(address):
        tl.store(address + (1 << 40), 1.0)

    write[(1,)](torch.zeros(1, device=rank.device))
    torch.cuda.synchronize()


FAULTS = {"out-of-memory": fill, "assert": look_up, "illegal": stray}


def main() -> None:
    """Train until the fault."""
    rank = Rank(("fault", str, "out-of-memory"))
    model = rank.wrapped(network(64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(50):
        if step == AT and rank.rank == rank.world - 1:
            FAULTS[rank.options.fault](rank)
        model(torch.randn(8, 64).to(rank.device)).square().mean().backward()
        optimizer.step()
        rank.idle()


main()
