"""A sample of the gradients that a rank is about to share, to find a NaN in them.

After the all-reduce all ranks have the NaN of one; before it, the sample shows which rank it comes from.  A
pass over all gradients would cost too much.  A NaN that arises anywhere in
the backward pass has spread over whole layers before it reaches a bucket, so a few
elements of each bucket find it.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from ddptop.agent.rank.hooks import losses
from ddptop.agent.rank.records.device_time import CAPTURES

SAMPLE: Final = 64
"""Elements of a bucket in its sample, evenly spaced."""


def sampled(torch: Any, bucket: Any) -> losses.Known | losses.Arriving | None:
    """Return a number, possibly pending, that is finite where the sample of a bucket is; None where it cannot be had.

    It costs a few us on a CPU; on a device it is a kernel and an asynchronous copy.
    """
    if type(bucket) is not torch.Tensor or bucket.layout is not torch.strided or CAPTURES.under_way:
        return None
    if bucket.is_complex():
        bucket = torch.view_as_real(bucket.detach().resolve_conj())
    # Those of a byte and less have few operations, or none.
    if not bucket.is_floating_point() or bucket.dtype.itemsize == 1:
        return None
    size = bucket.numel()
    stride = size // SAMPLE or 1
    # The sum of magnitudes: in a plain sum, two infinities of opposite sign would make a NaN.
    if bucket.is_cpu and bucket.dtype is torch.float32 and bucket.is_contiguous():
        # Read in place: operations of torch at this point took 40 us of a step.
        return losses.Known(sum(map(abs, (ctypes.c_float * size).from_address(bucket.data_ptr())[::stride])))
    # In float32 at least, since a sum of 64 halves may overflow; a norm is never narrower than its elements.
    wide = torch.promote_types(bucket.dtype, torch.float32)
    sample = bucket.detach().reshape(-1)[::stride]
    return losses.pending(torch, torch.linalg.vector_norm(sample, 1, dtype=wide))
