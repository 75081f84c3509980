"""Random numbers that depend on nothing that happened before, so that a resumed run needs no state of theirs.

What the seed, the epoch, the step and the rank are decides them, whatever was drawn earlier and
by however many loader processes.
"""

from __future__ import annotations

import torch


def seed(*numbers: int, device: torch.device | None = None) -> None:
    """Begin the random numbers of this process anew, from these numbers."""
    mixed = hash(numbers)
    # Not torch.manual_seed: without a GPU in use that keeps a stack trace, which takes longer than the rest.
    torch.default_generator.manual_seed(mixed)
    if device is not None and device.type == "cuda":
        torch.cuda.manual_seed(mixed)
