"""A rank that does not call the collective that the others call; `allreduce` is the technique where none is said."""

from __future__ import annotations

import socket
import threading
import time
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
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


def answered(training: Training) -> None:
    """Let rank 1 wait for a server that accepts its connection and never answers."""
    if training.rank == 1:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as link:
            link.recv(64)  # stands here


tracker: Final = fault("waiting", "not_entered", by=None, blamed=(1,), marked=answered)


@tracker
def tracker_and_group(training: Training) -> None:
    """It waits for a server while the others make a group."""
    answered(training)
    dist.new_group(range(training.world))


@tracker
def tracker_and_mesh(training: Training) -> None:
    """The same while they make a mesh, which has groups."""
    answered(training)
    init_device_mesh("cpu", (training.world, 1))


@tracker
def tracker_and_store(training: Training) -> None:
    """The same while they wait for its key in the store."""
    answered(training)
    store = dist.distributed_c10d._get_default_store()
    store.get("ready")


@tracker
def tracker_and_objects(training: Training) -> None:
    """The same while they gather objects."""
    answered(training)
    names = [""] * training.world
    dist.all_gather_object(names, f"rank {training.rank}")


@fault("mismatch", by=None, blamed=(), line=False, says="wait for each other|mismatch")
def crossed_locks(training: Training) -> None:
    """Two threads of each rank use two groups under one lock, and the ranks take them in another order."""
    first: Any = dist.new_group(range(training.world))
    second: Any = dist.new_group(range(training.world))
    guard = threading.Lock()

    def push() -> None:
        time.sleep(0.0 if training.rank else 0.7)
        with guard:
            dist.all_reduce(torch.ones(10), group=first)

    threading.Thread(target=push, name="metrics", daemon=True).start()
    time.sleep(0.7 if training.rank else 0.0)
    with guard:
        dist.all_reduce(torch.ones(3000), group=second)


@fault("mismatch", by=None, blamed=(1,))
def larger(training: Training) -> None:
    """In the line of all it gives a larger tensor than the others."""
    dist.all_reduce(torch.ones(1000 if training.rank == 1 else 64))  # stands here


@fault("collective_timeout", by=None, blamed=(1,), line=False, says="timeout")
def reads_too_long(training: Training) -> None:
    """It reads files for longer than the timeout of the group in which the others wait."""
    short: Any = dist.new_group(range(training.world), timeout=timedelta(seconds=15))
    if training.rank == 1:
        read_vectors(60.0)
    dist.all_reduce(torch.ones(1), group=short)


def read_vectors(seconds: float) -> None:
    """Read a file again and again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with open(__file__, "rb") as file:
            for _ in range(200):
                file.seek(0)
                file.read()
        time.sleep(0.01)


if __name__ == "__main__":
    main()
