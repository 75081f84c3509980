"""The memory of a rank: what a rank answers to `Memory`."""

# Without `annotations` from `__future__`, each of which msgspec would compile: every command and rank waits for that.
from typing import Annotated, Final

import msgspec

from ddptop.agent.wire.incoming import Label, Line, Name
from ddptop.agent.wire.message import Count, Size, Span

MOST_CENSUS_STEPS: Final = 1000
"""Steps between the two censuses of a rank at most."""
CENSUS_MS: Final = (3_000, 5_000)
"""Milliseconds for which two censuses may hold a rank: where nobody says how many, and at most."""
MOST_KINDS: Final = 40
"""Kinds of objects of one census at most: those with the most bytes, and those that grew most."""

LEAST: Final = 1 << 10
"""Bytes a step from which on growth is said: less takes weeks to matter."""
LEAST_OBJECTS: Final = 16 << 10
"""The same of Python objects, of which libraries and caches make some now and then."""

Grown = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]
"""A number of objects or bytes that came in addition; below zero where there are fewer."""


class ObjectKind(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All objects of one kind: tensors of one shape, dtype and device, or Python objects of one type."""

    kind: Name
    """`tensor`, `array` (NumPy) or `object`."""
    type: Label
    """Name of the Python type: `Parameter`, `ndarray`, `dict`."""
    dtype: Name = ""
    """`float32`; so are the next ones of tensors and arrays alone."""
    shape: Annotated[tuple[Count | None, ...], msgspec.Meta(max_length=32)] = ()
    """Sizes of the dimensions. None: they differ, where the objects that grew have many shapes."""
    device: Name = ""
    """`cpu`, `cuda:0`."""
    count: Count = 0
    """Objects that live; of tensors and arrays those with memory of their own: views of it count once."""
    bytes: Size = 0
    grown: Grown = 0
    """Objects that came in addition between the two censuses."""
    grown_bytes: Grown = 0
    made: Line = ""
    """The line that made most of those which came: `train.py:52`. Empty: not known."""
    holder: Line = ""
    """The place that holds most of them: ``list `kept` of train.py``. Empty: none was found, such as autograd's."""
    graphs: Count = 0
    """Tensors among those looked at that hold the graph of their making, which autograd keeps outside of Python."""

    @property
    def name(self) -> str:
        """`float32[64, 32, 256]`, `float32[64, 32] on cuda:0`, `NumPy float64[300, 300]`, `dict`."""
        if self.kind == "object":
            return self.type
        shape = ", ".join("*" if each is None else str(each) for each in self.shape)
        library = "NumPy " if self.kind == "array" else ""
        device = f" on {self.device}" if self.device not in ("cpu", "") else ""
        return f"{library}{self.dtype}[{shape}]{device}"


class Resident(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Resident memory of a process on the host by its kind, as Linux counts it."""

    anonymous: Size
    file: Size
    """Mapped files, such as libraries."""
    shared: Size
    """Shared memory, such as that of data workers."""
    anonymous_grown: Grown = 0
    """Between the two censuses; so are the next ones."""
    file_grown: Grown = 0
    shared_grown: Grown = 0
    heap: Size | None = None
    """Bytes that the C library's allocator has given out, those that nobody has touched included. None: not known."""
    heap_grown: Grown = 0
    heap_kept: Size | None = None
    """Bytes that were freed and that allocator keeps for later; they are resident mostly. None: not known."""
    heap_kept_grown: Grown = 0


class DeviceMemory(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The memory of a device, as torch's allocator counts it."""

    device: Name
    allocated: Size
    """Bytes of tensors."""
    reserved: Size
    """Bytes that the allocator has taken from the device."""
    allocated_grown: Grown = 0
    reserved_grown: Grown = 0
    peak: Size = 0
    """The most that was ever allocated."""
    snapshot: Line = ""
    """Path of the allocator's snapshot with its history over these steps, on the rank's host. Empty: there is none."""
    problem: Line = ""
    """The reason why there is none."""


class MemoryUse(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The memory of a rank at the end of a step, and its growth since the end of an earlier one."""

    first: Count
    """Number of the first of the steps between the two censuses."""
    last: Count
    kinds: Annotated[tuple[ObjectKind, ...], msgspec.Meta(max_length=MOST_KINDS)] = ()
    """Those that grew most first, then those with the most bytes."""
    left_out: Count = 0
    """Kinds that are not among these."""
    tensor_bytes: Size = 0
    """Bytes of all tensors and arrays on the host."""
    tensor_grown: Grown = 0
    object_bytes: Size = 0
    """Bytes of all Python objects that were counted, without what they hold."""
    object_grown: Grown = 0
    resident: Resident | None = None
    """None: it could not be read."""
    devices: Annotated[tuple[DeviceMemory, ...], msgspec.Meta(max_length=64)] = ()
    census_ns: Span = 0
    """Time for which the two censuses held the training thread."""
    elapsed_ns: Span = 0
    """Time of the steps between them."""
    is_whole: bool = True
    """False where there was no time to count all objects each time: of what was left out it is not known what grew."""
    remarks: Annotated[tuple[Line, ...], msgspec.Meta(max_length=8)] = ()
    """What was left out, and how much was looked at, in sentences."""
