"""A glance at the gradients that a rank is about to share.

Once they are averaged, one rank's NaN is everybody's; before, it tells whose it was.  A
pass over all gradients is what the training cannot be charged.  A NaN that arises anywhere in
the backward pass has spread over whole layers by the time it comes to a bucket, so a few
elements of each bucket find it.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from ddptop.agent.rank.hooks import losses
from ddptop.agent.rank.records.device_time import CAPTURES

SAMPLE: Final = 64
"""Elements looked at in a bucket, evenly spaced."""


def glance(torch: Any, bucket: Any) -> losses.Known | losses.Arriving | None:
    """Return a way to a number that is finite where the sample of a bucket of gradients is; None where there is none.

    A few us on a CPU; on a device a kernel and a copy that wait for nobody.
    """
    if type(bucket) is not torch.Tensor or not bucket.is_floating_point() or CAPTURES.under_way:
        return None
    size = bucket.numel()
    stride = size // SAMPLE or 1
    # The sum of magnitudes: two infinities of unlike sign must not make a NaN.
    if bucket.is_cpu and bucket.dtype is torch.float32 and bucket.is_contiguous():
        # Read in place: operations of torch, between others, took 40 us of a step.
        return losses.Known(sum(map(abs, (ctypes.c_float * size).from_address(bucket.data_ptr())[::stride])))
    # In float32, since 64 halves overflow.
    sample = bucket.detach().reshape(-1)[::stride]
    return losses.pending(torch, torch.linalg.vector_norm(sample, 1, dtype=torch.float32))
