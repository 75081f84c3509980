"""GPUs and cores of this machine, found without torch, and the choice of device and backend for a group.

The choice comes with its reason in one line.  GPUs are those of the NVIDIA driver, through NVML.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

from ddptop.agent.launcher.boards import boards
from ddptop.agent.text import plural

BACKEND_VARIABLE: Final = "DDPTOP_BACKEND"
"""Environment variable with the backend that the launch has chosen, for the ranks."""

_MOST_RANKS: Final = 512
_MOST_RANKS_A_CORE: Final = 16


@dataclass(frozen=True, slots=True)
class Placement:
    """Device and backend for the ranks of a run, with the reason."""

    device: str
    """`cuda` or `cpu`."""
    backend: str
    """`nccl` or `gloo`."""
    text: str
    """The reason, one line for people."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables for the ranks."""


def gpus() -> int:
    """Return the number of GPUs that a CUDA program would see in this environment."""
    return visible([board.uuid for board in boards()], os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(names: list[str], mask: str | None) -> int:
    """Return how many of the GPUs with these UUIDs the mask `CUDA_VISIBLE_DEVICES` leaves.

    CUDA reads it as indices or beginnings of UUIDs; the first entry that matches no GPU ends the list.
    """
    if mask is None:
        return len(names)
    count = 0
    for entry in (part.strip() for part in mask.split(",")):
        by_index = entry.isdecimal() and int(entry) < len(names)
        by_name = entry.startswith("GPU-") and any(name.startswith(entry) for name in names)
        if not (by_index or by_name or entry.startswith("MIG-")):
            break
        count += 1
    return count


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def default_world() -> int:
    """Return the default number of ranks: one for each GPU, or 2 without a GPU."""
    return gpus() or 2


def check_world(world: int) -> int:
    """Return `world` if this machine can run a group of that size.

    Raises:
        ValueError: it cannot; the message is the reason, one line.
    """
    if world < 1:
        raise ValueError(f"world {world}: a group has at least 1 rank")
    available = cores()
    most = min(_MOST_RANKS, max(_MOST_RANKS_A_CORE * available, gpus()))
    if world > most:
        raise ValueError(
            f"world {world}: at most {most} ranks on this machine ({plural(available, 'core')}); "
            f"each rank is a process of its own with all of torch in it"
        )
    return world


def choose(world: int, backend: str | None = None) -> Placement:
    """Return device and backend for `world` ranks: NCCL with a GPU for each where there are enough.

    Args:
        world: number of ranks.
        backend: `gloo` or `nccl` where the user has chosen one.

    Raises:
        ValueError: that backend cannot work here; the message is the reason, one line.
    """
    if backend not in (None, "gloo", "nccl"):
        raise ValueError(f"backend {backend!r}: choose gloo or nccl")
    found = gpus()
    if backend == "nccl" and found < world:
        raise ValueError(
            f"backend nccl needs a GPU for each rank: {plural(world, 'rank')}, {plural(found, 'GPU')} here; "
            + (f"use --world {found} or --backend gloo" if found else "use --backend gloo")
        )
    if found == 0:
        return _on_cpu(world)
    ranks = plural(world, "rank")
    if found >= world and backend != "gloo":
        return Placement("cuda", "nccl", f"a GPU for each of {ranks}: NCCL", {BACKEND_VARIABLE: "nccl"})
    why = f"a GPU for each of {ranks}: gloo, as asked"
    if found < world:
        why = f"{plural(found, 'GPU')} for {ranks}: gloo, ranks share a GPU (NCCL needs one for each rank)"
    return Placement("cuda", "gloo", why, {BACKEND_VARIABLE: "gloo"})


def _on_cpu(world: int) -> Placement:
    available = cores()
    text = f"no GPU: gloo on the CPU, {plural(available, 'core')} for {plural(world, 'rank')}"
    environment = {BACKEND_VARIABLE: "gloo"}
    given = os.environ.get("OMP_NUM_THREADS")
    if given is None:
        threads = max(1, available // world)
        # Without this, torchrun gives every rank one thread, and a single rank all of them.
        environment["OMP_NUM_THREADS"] = str(threads)
        return Placement("cpu", "gloo", f"{text}, {plural(threads, 'thread')} each", environment)
    return Placement("cpu", "gloo", f"{text}, OMP_NUM_THREADS={given} from your environment", environment)
