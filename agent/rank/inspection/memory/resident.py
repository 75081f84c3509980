"""Resident memory of this process by its kind."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar, Final

from ddptop.agent.wire import Resident

_FIELDS: Final = ("RssAnon:", "RssFile:", "RssShmem:")
_NAMES: Final = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip
"""Fields of what `mallinfo2` returns."""


def resident(own: int, before: Resident | None = None) -> Resident | None:
    """Return the resident memory of this process, and its growth; None where the system does not say it.

    Args:
        own: bytes of the heap that are the agent's, and left out.
        before: since when it has grown.
    """
    found = {}
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/status", "rb") as file:
        for line in file.read().decode(errors="replace").splitlines():
            name, _, rest = line.partition("\t")
            if name in _FIELDS:
                found[name] = int(rest.split()[0]) << 10
    if len(found) < len(_FIELDS):
        return None
    anonymous, file_mapped, shared = (found[name] for name in _FIELDS)
    anonymous, (heap, kept) = max(0, anonymous - own), _heap()
    heap = None if heap is None else max(0, heap - own)
    since = before or Resident(anonymous, file_mapped, shared, heap=heap, heap_kept=kept)
    return Resident(
        anonymous,
        file_mapped,
        shared,
        anonymous - since.anonymous,
        file_mapped - since.file,
        shared - since.shared,
        heap,
        0 if heap is None or since.heap is None else heap - since.heap,
        kept,
        0 if kept is None or since.heap_kept is None else kept - since.heap_kept,
    )


def _heap() -> tuple[int, int] | tuple[None, None]:
    """Return the bytes that the allocator of the C library has given out, and those that were freed and that it keeps.

    None where it is not glibc's since 2.33.  See `man mallinfo`.
    """
    import ctypes

    class Info(ctypes.Structure):
        _fields_: ClassVar[list[Any]] = [(name, ctypes.c_size_t) for name in _NAMES]

    try:
        read = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None, None
    read.restype = Info
    found = read()
    return int(found.uordblks + found.hblkhd), int(found.fordblks)
