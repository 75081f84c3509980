"""Collectives over a binomial tree: in each round the number of ranks that have the tensor doubles.

It takes log2(N) rounds instead of N - 1, which is best for small tensors; each round still moves all of
the tensor.  Ranks are counted from the root, so that any rank can be the root.
"""

from __future__ import annotations

import torch
import torch.distributed as dist


def broadcast(tensor: torch.Tensor, root: int) -> None:
    """Give every rank the root's tensor, in place.

    In the round of distance d = 1, 2, 4, ... the ranks below d, which have the tensor, send it to the rank d further.
    """
    world, position = _position(root)
    for distance in _distances(world):
        if position < distance and position + distance < world:
            dist.send(tensor, (position + distance + root) % world)
        elif distance <= position < 2 * distance:
            dist.recv(tensor, (position - distance + root) % world)


def reduce(tensor: torch.Tensor, root: int) -> None:
    """Give the root the sum of all ranks' tensors, in place: a broadcast in reverse order.

    On the other ranks a part of the sum remains.
    """
    world, position = _position(root)
    arriving = torch.empty_like(tensor)
    for distance in reversed(_distances(world)):
        if position < distance and position + distance < world:
            dist.recv(arriving, (position + distance + root) % world)
            tensor += arriving
        elif distance <= position < 2 * distance:
            dist.send(tensor, (position - distance + root) % world)


def all_reduce(tensor: torch.Tensor) -> None:
    """Give every rank the sum of all ranks' tensors, in place."""
    reduce(tensor, root=0)
    broadcast(tensor, root=0)


def _position(root: int) -> tuple[int, int]:
    world = dist.get_world_size()
    return world, (dist.get_rank() - root) % world


def _distances(world: int) -> list[int]:
    return [1 << round_ for round_ in range((world - 1).bit_length())]
