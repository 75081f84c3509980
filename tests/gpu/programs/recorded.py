"""Does some all-reduces, and reads torch's flight recorder as the agent does."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from support.gpu.measuring import Rank

CALLS = 5
ELEMENTS = 1 << 18
PATIENCE_S = 10.0


def main() -> None:
    """Report what the agent reads of torch's own record, and its own count of calls."""
    from ddptop.agent.rank.collectives import recorder

    rank = Rank()
    block = torch.ones(ELEMENTS, device=rank.device)
    for _ in range(CALLS):
        dist.all_reduce(block)
    rank.idle()
    # NCCL's own thread notes completion a few times a second.
    deadline = time.monotonic() + PATIENCE_S
    while any(entry.is_open for entry in recorder.entries(torch)) and time.monotonic() < deadline:
        time.sleep(0.1)
    names = ("op", "bytes", "is_open", "group", "collective_seq_id", "profiling_name")
    entries = [{name: getattr(entry, name) for name in names} for entry in recorder.entries(torch)]
    counted = {name: group.calls for name, group in rank.groups.items()}
    rank.report(entries=entries, counted=counted)


main()
