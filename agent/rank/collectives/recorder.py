"""Torch's own record of collectives, its flight recorder: asked where our hooks do not show it.

A dump holds the interpreter lock for tens of milliseconds, so that only a rank that stands still is asked for it.
Gloo and NCCL have one each; of gloo's entries only `retired` shows completion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

_DUMPS: Final = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Functions of torch that return the entries of gloo and of NCCL, in those versions that have them."""
_LARGEST: Final = 16 << 20
_BYTES: Final = {"Double": 8, "Long": 8, "ComplexFloat": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2}
"""By name of the type of an element; all others have one."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A collective as torch has recorded it."""

    process_group: list[str]
    """Name and description."""
    collective_seq_id: int = 0
    """The how-manieth collective of the group it is, from 1."""
    profiling_name: str = ""
    """`gloo:all_reduce`."""
    input_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    is_p2p: bool = False
    retired: bool = False
    state: str = ""
    time_created_ns: int = 0
    """Wall-clock nanoseconds."""

    @property
    def group(self) -> str:
        """Name of the process group."""
        return self.process_group[0] if self.process_group else ""

    @property
    def op(self) -> str:
        """Name of the operation."""
        return self.profiling_name.rpartition(":")[2]

    @property
    def is_open(self) -> bool:
        """True where it has not completed."""
        return not self.retired and self.state != "completed"

    @property
    def bytes(self) -> int:
        """Size of this rank's input."""
        total = 0
        for sizes, kind in zip(self.input_sizes, self.input_dtypes, strict=False):
            elements = _BYTES.get(kind, 1)
            for size in sizes:
                elements *= size
            total += elements
        return min(max(0, total), 1 << 53)


class _Dump(msgspec.Struct):
    entries: list[Entry] = []


_decoder: Final = msgspec.json.Decoder(_Dump, strict=False)


def entries(torch: Any) -> list[Entry]:
    """Return the collectives that torch has recorded, oldest first; empty where it records none, or cannot be asked."""
    module = getattr(getattr(torch, "_C", None), "_distributed_c10d", None)
    found: list[Entry] = []
    for dump in filter(None, (getattr(module, name, None) for name in _DUMPS)):
        found += _read(dump)
    return [entry for entry in found if not entry.is_p2p]


def _read(dump: Callable[[], bytes]) -> Iterable[Entry]:
    try:
        told = dump()
        return _decoder.decode(told).entries if len(told) <= _LARGEST else []
    except (RuntimeError, msgspec.MsgspecError):
        # A backend that was not built in, or a format of another version.
        return []
