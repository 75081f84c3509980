"""Random numbers without a stored state, so that a resumed run has the same ones.

They follow from seed, epoch, step and rank, whatever numbers were drawn earlier and
however many loader processes there are.
"""

from __future__ import annotations

import torch


def seed(*numbers: int, device: torch.device | None = None) -> None:
    """Seed the random numbers of this process with these numbers."""
    mixed = hash(numbers)
    # Not torch.manual_seed: without a GPU in use that stores a stack trace, which takes longer than the rest.
    torch.default_generator.manual_seed(mixed)
    if device is not None and device.type == "cuda":
        torch.cuda.manual_seed(mixed)
