"""Collectives by way of one root, which exchanges with the others one after the other.

The root moves N - 1 times the data while all others wait: the time grows with the number of
ranks, and rank 0 differs from the others on the dashboard.
"""

from __future__ import annotations

import torch
import torch.distributed as dist


def broadcast(tensor: torch.Tensor, root: int) -> None:
    """Give every rank the root's tensor, in place."""
    if dist.get_rank() == root:
        for other in _others(root):
            dist.send(tensor, other)
    else:
        dist.recv(tensor, root)


def reduce(tensor: torch.Tensor, root: int) -> None:
    """Give the root the sum of all ranks' tensors, in place; on the others nothing changes."""
    if dist.get_rank() == root:
        arriving = torch.empty_like(tensor)
        for other in _others(root):
            dist.recv(arriving, other)
            tensor += arriving
    else:
        dist.send(tensor, root)


def all_reduce(tensor: torch.Tensor) -> None:
    """Give every rank the sum of all ranks' tensors, in place."""
    reduce(tensor, root=0)
    broadcast(tensor, root=0)


def gather(tensor: torch.Tensor, root: int) -> list[torch.Tensor] | None:
    """Return all ranks' tensors, which are of one shape, on the root and None on the others."""
    if dist.get_rank() != root:
        dist.send(tensor, root)
        return None
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    gathered[root].copy_(tensor)
    for other in _others(root):
        dist.recv(gathered[other], other)
    return gathered


def all_gather(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return all ranks' tensors, which are of one shape, on every rank."""
    gathered = gather(tensor, root=0) or [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    for part in gathered:
        broadcast(part, root=0)
    return gathered


def reduce_scatter(parts: list[torch.Tensor]) -> torch.Tensor:
    """Return the sum over all ranks of `parts[rank]`; the root adds all parts and distributes the sums.

    Args:
        parts: one tensor for each rank; they are overwritten.
    """
    rank = dist.get_rank()
    for part in parts:
        reduce(part, root=0)
    if rank == 0:
        for other in _others(0):
            dist.send(parts[other], other)
    else:
        dist.recv(parts[rank], 0)
    return parts[rank]


def _others(root: int) -> list[int]:
    return [rank for rank in range(dist.get_world_size()) if rank != root]
