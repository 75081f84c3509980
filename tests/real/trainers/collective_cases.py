"""Every collective by hand against torch.distributed's own, run by each rank of a group."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ddptop.trainers.handmade import ring
from ddptop.trainers.handmade.table import COLLECTIVES
from ddptop.trainers.rank import group

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
)
SHAPES = ((1,), (3, 1), (1001,))


def main(_: list[str]) -> int:
    """Compare; print what differs."""
    with group.joined("gloo") as position:
        wrong = []
        for dtype in DTYPES:
            for shape in SHAPES:
                wrong += _differing(dtype, shape, position.rank)
        # Segments: a chunk that travels in several pieces, the last of them shorter.
        ring.SEGMENT_BYTES = 256  # type: ignore[misc]
        wrong += _differing(torch.float32, (1001,), position.rank)
        print("\n".join(wrong))
        print("sent", _bytes_sent(position.world * 1000), flush=True)
    return 1 if wrong else 0


def _differing(dtype: torch.dtype, shape: tuple[int, ...], rank: int) -> list[str]:
    # Small whole numbers: their sums are exact in every type, in whatever order.
    generator = torch.Generator().manual_seed(rank)
    tensor = torch.randint(0, 4, shape, generator=generator).to(dtype)
    wrong = []
    for name, ways in COLLECTIVES.items():
        before = tensor.clone()
        wanted = ways["backend"](tensor)
        for way, collective in ways.items():
            found = collective(tensor)
            if not (torch.equal(found, wanted) and found.dtype == wanted.dtype and torch.equal(tensor, before)):
                wrong.append(f"rank {rank}: {name}, {way}, {dtype}, {shape}: {found} is not {wanted}")
    return wrong


def _bytes_sent(elements: int) -> int:
    """Return how much this rank sends in a ring all-reduce, counted where torch is asked to send."""
    sent = 0
    original = dist.batch_isend_irecv

    def counting(p2p_op_list: list[dist.P2POp]) -> list[dist.Work]:
        nonlocal sent
        sent += sum(operation.tensor.nbytes for operation in p2p_op_list if operation.op is dist.isend)
        return original(p2p_op_list)

    dist.batch_isend_irecv = counting
    ring.all_reduce(torch.ones(elements))
    dist.batch_isend_irecv = original
    return sent
