"""Point to point: a tensor goes from rank to rank, first blocking, then not.

Technique: `send` returns when the tensor may be changed again and `recv` when it has arrived, so a
chain of ranks works one after the other. `isend` and `irecv` return at once; all ranks pass on
at the same time, and may use the tensor after `wait`.
Source: PyTorch tutorial, Writing Distributed Applications with PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist

from ddptop.trainers import CATALOGUE
from ddptop.trainers.rank.group import Position, say
from ddptop.trainers.rank.options import Options, group_parser
from ddptop.trainers.rank.start import run


def blocking(position: Position) -> torch.Tensor:
    """Pass a tensor along the chain of ranks, each of which adds one; return the tensor that this rank sent."""
    tensor = torch.zeros(1, device=position.device)
    if position.rank > 0:
        dist.recv(tensor, src=position.rank - 1)
        say(f"rank {position.rank} received {tensor.item():g} from rank {position.rank - 1}, blocking")
    tensor += 1
    if position.rank < position.world - 1:
        dist.send(tensor, dst=position.rank + 1)
    return tensor


def nonblocking(position: Position) -> torch.Tensor:
    """Send this rank's number to the next rank of the ring while the neighbour's arrives; return the neighbour's."""
    after, before = (position.rank + 1) % position.world, (position.rank - 1) % position.world
    own = torch.full((1,), float(position.rank), device=position.device)
    arriving = torch.empty(1, device=position.device)
    # NCCL needs both in one call, or each rank would wait for the other to receive.
    both = [dist.P2POp(dist.isend, own, after), dist.P2POp(dist.irecv, arriving, before)]
    for request in dist.batch_isend_irecv(both):
        request.wait()
    say(f"rank {position.rank} received {arriving.item():g} from rank {before}, not blocking")
    return arriving


def talk(_: Options, position: Position) -> None:
    """Do both, one after the other."""
    if position.world == 1:
        say("rank 0 is alone and has nobody to send to; start two ranks or more")
        return
    blocking(position)
    # The barrier separates the output of the two parts; point to point itself needs none.
    dist.barrier()
    nonblocking(position)


def main(arguments: Sequence[str] | None = None) -> int:
    """Send and receive; return the exit code."""
    return run(group_parser(CATALOGUE["sendrecv"]), talk, arguments)


if __name__ == "__main__":
    sys.exit(main())
