"""Every collective by every algorithm, for comparison: functions from this rank's tensor to this rank's result.

The calls of torch.distributed and those by hand have one form here, in which gathered tensors are stacked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist

from ddptop.trainers.handmade import naive, ring, tree

Collective = Callable[[torch.Tensor], torch.Tensor]

ROOT: Final = 0


def _in_place(collective: Callable[..., Any], *arguments: Any) -> Collective:
    def run(tensor: torch.Tensor) -> torch.Tensor:
        result = tensor.clone()
        collective(result, *arguments)
        return result

    return run


def _on_root(collective: Callable[..., Any]) -> Collective:
    """Return the result of a reduction on the root; on other ranks its result is undefined, and left out."""
    reduced = _in_place(collective, ROOT)

    def run(tensor: torch.Tensor) -> torch.Tensor:
        result = reduced(tensor)
        return result if dist.get_rank() == ROOT else tensor

    return run


def _mean(all_reduce: Collective) -> Collective:
    return lambda tensor: all_reduce(tensor) / dist.get_world_size()


def _stacked(gather: Callable[[torch.Tensor], list[torch.Tensor] | None]) -> Collective:
    def run(tensor: torch.Tensor) -> torch.Tensor:
        gathered = gather(tensor)
        return tensor if gathered is None else torch.stack(gathered)

    return run


def _scattered(reduce_scatter: Callable[[list[torch.Tensor]], torch.Tensor]) -> Collective:
    """Return the sum of this rank's part, where part r of a rank's tensor is r times the tensor."""
    return lambda tensor: reduce_scatter([tensor * other for other in range(dist.get_world_size())])


def _backend_gather(tensor: torch.Tensor) -> list[torch.Tensor] | None:
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    if dist.get_rank() == ROOT:
        dist.gather(tensor, gathered, ROOT)
        return gathered
    dist.gather(tensor, dst=ROOT)
    return None


def _backend_all_gather(tensor: torch.Tensor) -> list[torch.Tensor]:
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, tensor)
    return gathered


def _backend_reduce_scatter(parts: list[torch.Tensor]) -> torch.Tensor:
    # Not every backend of every torch has a reduce_scatter, but all have an all_reduce.
    whole = torch.stack(parts)
    dist.all_reduce(whole)
    return whole[dist.get_rank()]


_SUMS: Final = {
    "backend": _in_place(dist.all_reduce),
    "naive": _in_place(naive.all_reduce),
    "tree": _in_place(tree.all_reduce),
    "ring": _in_place(ring.all_reduce),
}

COLLECTIVES: Final[dict[str, dict[str, Collective]]] = {
    "broadcast": {
        "backend": _in_place(dist.broadcast, ROOT),
        "naive": _in_place(naive.broadcast, ROOT),
        "tree": _in_place(tree.broadcast, ROOT),
    },
    "reduce": {
        "backend": _on_root(dist.reduce),
        "naive": _on_root(naive.reduce),
        "tree": _on_root(tree.reduce),
    },
    "all_reduce sum": _SUMS,
    "all_reduce mean": {way: _mean(all_reduce) for way, all_reduce in _SUMS.items()},
    "gather": {
        "backend": _stacked(_backend_gather),
        "naive": _stacked(lambda tensor: naive.gather(tensor, ROOT)),
    },
    "all_gather": {
        "backend": _stacked(_backend_all_gather),
        "naive": _stacked(naive.all_gather),
        "ring": _stacked(ring.all_gather),
    },
    "reduce_scatter": {
        "backend": _scattered(_backend_reduce_scatter),
        "naive": _scattered(naive.reduce_scatter),
        "ring": _scattered(ring.reduce_scatter),
    },
}
"""By collective and algorithm; `backend` is that of torch.distributed."""
