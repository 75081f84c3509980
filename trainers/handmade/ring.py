"""Collectives around a ring: every rank sends to the next while it receives from the one before.

The tensor is split into N chunks that are passed on N - 1 times to be summed, and N - 1 times more to reach
all ranks.  A rank sends 2(N - 1)/N of the tensor in all, which is the minimum, and all
links are always in use.
Source: Patarasu and Yuan 2009, Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist

SEGMENT_BYTES: Final = 1 << 20
"""Chunks are sent in pieces of this size, so that one is added while the next are still in flight."""


def all_reduce(tensor: torch.Tensor) -> None:
    """Give every rank the sum of all ranks' tensors, in place."""
    flat = tensor.view(-1)
    chunks = list(flat.tensor_split(dist.get_world_size()))
    _sum_around(chunks)
    _pass_around(chunks)


def reduce_scatter(parts: list[torch.Tensor]) -> torch.Tensor:
    """Return the sum over all ranks of `parts[rank]`.

    Args:
        parts: one tensor for each rank; they are overwritten.
    """
    _sum_around([part.view(-1) for part in parts])
    return parts[dist.get_rank()]


def all_gather(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return all ranks' tensors, which are of one shape, on every rank."""
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    gathered[dist.get_rank()].copy_(tensor)
    _pass_around([part.view(-1) for part in gathered])
    return gathered


def _sum_around(chunks: list[torch.Tensor]) -> None:
    """Sum each chunk while it is passed around; at the end rank r has the whole sum of chunk r."""
    rank, world = dist.get_rank(), dist.get_world_size()
    spare = torch.empty_like(max(chunks, key=torch.numel))
    for step in range(1, world):
        own = chunks[(rank - step - 1) % world]
        pieces, arriving = _pieces(own), _pieces(spare[: len(own)])
        transfers = _exchange(_pieces(chunks[(rank - step) % world]), arriving)
        for number, piece in enumerate(pieces):
            _finish(transfers[number])
            piece += arriving[number]
        for transfer in transfers[len(pieces) :]:
            _finish(transfer)


def _pass_around(chunks: list[torch.Tensor]) -> None:
    """Pass each chunk around until every rank has it; at the beginning rank r has chunk r."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(world - 1):
        outgoing, arriving = chunks[(rank - step) % world], chunks[(rank - step - 1) % world]
        for transfer in _exchange(_pieces(outgoing), _pieces(arriving)):
            _finish(transfer)


def _exchange(outgoing: list[torch.Tensor], arriving: list[torch.Tensor]) -> list[list[dist.Work]]:
    """Start to send to the next rank and to receive from the one before, both at once, piece by piece."""
    rank, world = dist.get_rank(), dist.get_world_size()
    transfers = []
    for number in range(max(len(outgoing), len(arriving))):
        operations = [dist.P2POp(dist.isend, piece, (rank + 1) % world) for piece in outgoing[number : number + 1]]
        operations += [dist.P2POp(dist.irecv, piece, (rank - 1) % world) for piece in arriving[number : number + 1]]
        transfers.append(dist.batch_isend_irecv(operations))
    return transfers


def _finish(transfer: list[dist.Work]) -> None:
    for work in transfer:
        work.wait()


def _pieces(chunk: torch.Tensor) -> list[torch.Tensor]:
    # With fewer elements than ranks some chunks are empty.
    return [piece for piece in torch.split(chunk, max(1, SEGMENT_BYTES // chunk.element_size())) if len(piece)]
