"""Checksums of the parameters of a rank at the end of a step, which the observer compares with those of other ranks."""

# Without `annotations` from `__future__`, each of which msgspec would compile: every command and rank waits for that.
from typing import Annotated, Final

import msgspec

from ddptop.agent.wire.message import Called, Count, Message, Moment, Rank, Span

MOST_SUMS: Final = 4096
"""Tensors of a rank that are compared at most; further ones are left out, and that is said."""
MOST_MODULES: Final = 64
"""Modules of a rank that are compared at most."""


class ModuleSums(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The checksums of one module, or of the parameters of one optimizer that are in no such module."""

    group: Called
    """Process group over which DDP keeps the module the same. Empty: it is not wrapped in DDP, and may differ."""
    number: Count
    """Consecutive number of the module in its group, from 0; the same on all ranks of the group."""
    steps: Count
    """Optimizer steps that these parameters have made: only checksums after the same number are comparable."""
    layout: Called
    """Digest of names, shapes, types and kind of device: only checksums of the same layout are comparable."""
    sums: Annotated[bytes, msgspec.Meta(max_length=8 * MOST_SUMS)]
    """A little-endian `int64` for each tensor, in the order of `names`."""
    members: Count = 0
    """Ranks of the group. 0: it is no group's."""
    names: Annotated[tuple[Called, ...], msgspec.Meta(max_length=MOST_SUMS)] = ()
    """Names of the tensors. Empty: they were sent before, and are sent again from time to time."""
    sharded: Count = 0
    """Parameters of which the rank has only a part (DTensor, FSDP); they are not compared."""
    left_out: Count = 0
    """Tensors that are not compared for another reason: beyond `MOST_SUMS`, sparse, or on another kind of device."""


class Checksums(Message, frozen=True, tag="checksums"):
    """All checksums that a rank has computed at the end of one step."""

    rank: Rank
    step: Count
    """Optimizer steps completed."""
    at_ns: Moment
    """End of that step."""
    modules: Annotated[tuple[ModuleSums, ...], msgspec.Meta(max_length=MOST_MODULES)] = ()
    took_ns: Span = 0
    """Time that the training thread spent on them."""
    every: Count = 0
    """They come after so many steps of the parameters. 0: only on request."""
    generation: Count = 0
    """Restart count of the group when the rank's process began."""
