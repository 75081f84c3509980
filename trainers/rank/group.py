"""The process group of a run, and the position of this process in it.

The position is read from torchrun's environment variables; a program that is started alone becomes a group of one, so
that the training loop has only one case. This module knows no models or data.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import torch
import torch.distributed as dist

from ddptop.trainers.rank.refusal import NO_MPI, Refusal

BACKEND_VARIABLE: Final = "DDPTOP_BACKEND"
"""Environment variable with the backend that `ddptop launch` has chosen."""

_T = TypeVar("_T")


def say(line: str) -> None:
    """Print a line in one write, because the ranks often share one terminal or pipe."""
    print(line + "\n", end="", flush=True)


@dataclass(frozen=True)
class Position:
    """The position of this process in the group."""

    rank: int
    local_rank: int
    world: int
    device: torch.device
    backend: str

    @property
    def first(self) -> bool:
        """True on the one rank that prints summaries and writes checkpoints."""
        return self.rank == 0

    def say(self, line: str) -> None:
        """Print a line about the whole group, on rank 0 only."""
        if self.first:
            say(line)

    def agree(self, work: Callable[[], _T]) -> _T:
        """Call `work`, which may raise `Refusal` on some ranks; if one refuses, all do.

        Without this the others would wait in their next collective for a rank that has ended.
        """
        result: _T | None = None
        problem: str | None = None
        try:
            result = work()
        except Refusal as refusal:
            problem = str(refusal)
        problems: list[str | None] = [None] * self.world
        dist.all_gather_object(problems, problem)
        for rank, found in enumerate(problems):
            if found is not None:
                raise Refusal(found if set(problems) == {found} else f"rank {rank}: {found}")
        return result  # type: ignore[return-value]  # None only where `work` returns None

    def total(self, *numbers: float | torch.Tensor) -> list[float]:
        """Return each number summed over all ranks."""
        sums = torch.tensor([float(number) for number in numbers], dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        return [float(value) for value in sums.tolist()]


@contextmanager
def joined(backend: str | None = None) -> Iterator[Position]:
    """Join the group that the environment describes, and destroy it at the end.

    Args:
        backend: the backend of torch.distributed; None chooses one.

    Raises:
        Refusal: that backend cannot work here.
    """
    position = _position(backend)
    if position.device.type == "cuda":
        torch.cuda.set_device(position.device)
    if dist.is_torchelastic_launched() or "RANK" in os.environ:
        dist.init_process_group(position.backend)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]  # public, but not in the package's __all__
        dist.init_process_group(position.backend, store=store, rank=0, world_size=1)
    try:
        yield position
    except (Refusal, SystemExit):
        # Usually all ranks refuse together, or are stopped at the same step.
        _leave()
        raise
    else:
        _leave()
    # After any other error the group is not destroyed: that would wait for ranks that wait for this one.


def _leave() -> None:
    # A model that is still referenced keeps the group's threads alive until the exit of the
    # interpreter, where gloo sometimes aborts the process.
    gc.collect()
    dist.destroy_process_group()


def _position(backend: str | None) -> Position:
    rank = int(os.environ.get("RANK", "0"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", str(rank)))
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
    chosen = _backend(backend or os.environ.get(BACKEND_VARIABLE), gpus, local_world)
    return Position(rank, local_rank, world, device, chosen)


def _backend(asked: str | None, gpus: int, local_world: int) -> str:
    if not asked:
        return "nccl" if gpus >= local_world else "gloo"
    if asked == "mpi":
        raise Refusal(NO_MPI)
    if asked not in ("gloo", "nccl"):
        raise Refusal(f"backend {asked}: choose gloo or nccl")
    if asked == "nccl" and gpus < local_world:
        raise Refusal(f"backend nccl needs a GPU for each rank, here are {gpus} for {local_world}; choose gloo")
    return asked
