"""A rank that does not call the collective that the others call; `allreduce` is the technique where none is said."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from training import FOR_EVER, Training, fault, main

MISMATCH = r"(?i)mismatch|other collective|did not enter"
LEFT = r"(?i)left|finished its script|did not enter|mismatch"


@fault("not_entered", "mismatch", line=False, says=LEFT)
def skip(training: Training) -> None:
    """It stays out of the reductions from now on, and goes on with its steps."""
    training.reduces = False


@fault("mismatch", says=MISMATCH)
def other(training: Training) -> None:
    """It calls an all-gather where the others call an all-reduce."""
    part = torch.zeros(7)
    dist.all_gather([torch.empty(7) for _ in range(training.world)], part)  # stands here


@fault("mismatch", by=None, blamed=(1,), says=MISMATCH)
def gather_sizes(training: Training) -> None:
    """It gives another size to an all-gather than the others, who gather, too."""
    part = torch.zeros(7 if training.rank else 4096)
    dist.all_gather([torch.empty_like(part) for _ in range(training.world)], part)  # stands here


@fault("mismatch", by=None, says=MISMATCH)
def sends(training: Training) -> None:
    """Each sends to its neighbor, and none receives."""
    dist.send(torch.zeros(8 << 20), (training.rank + 1) % training.world)  # stands here


@fault("mismatch", by=None, says=MISMATCH)
def receives(training: Training) -> None:
    """Each receives from its neighbor, and none sends."""
    dist.recv(torch.zeros(8), (training.rank + 1) % training.world)  # stands here


@fault("mismatch", says=MISMATCH)
def shape(training: Training) -> None:
    """It reduces a tensor of another size than the others."""
    dist.all_reduce(torch.zeros(7))  # stands here


@fault("left_early", "mismatch", "not_entered", line=False, says=LEFT)
def left(training: Training) -> None:
    """It leaves the loop early and waits at the barrier behind it."""
    training.leaves = True


@fault("left_early", "mismatch", "not_entered", line=False, says=LEFT)
def batches(training: Training) -> None:
    """It has fewer batches than the others, and ends."""
    training.leaves = True
    training.waits_at_the_end = False


@fault("left_early", "not_entered", "waiting", says=LEFT)
def barrier(training: Training) -> None:
    """It misses the barrier at the end, and does something else there."""
    for _ in range(training.options.steps - training.number + 1):
        training.step()
    time.sleep(FOR_EVER)  # stands here


@fault("not_entered", "mismatch", says=MISMATCH)
def new_group(training: Training) -> None:
    """It alone makes another group, for which all have to come."""
    dist.new_group(range(training.world))  # stands here


if __name__ == "__main__":
    main()
