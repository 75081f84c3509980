"""The lines that made the objects of some steps, by Python's own record of allocations (`tracemalloc`).

Where the script records them itself it goes on, and there is no census.
"""

from __future__ import annotations

import _tracemalloc
import ctypes
import functools
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import chain, islice
from typing import Any, ClassVar, Final

from ddptop.agent.rank.ahead import Unanswered
from ddptop.agent.rank.inspection.memory.objects import Time, address_of
from ddptop.agent.run.script.sources import Sources

_FRAMES: Final = 24
"""Frames of each allocation that are kept: between a line of the script and a tensor stand modules of torch."""
_SETTLES_S: Final = 0.05
"""Seconds from the beginning of a record to its end at least."""
_RAW: Final = 0
"""Domain of the memory that threads may allocate without the interpreter lock (`PYMEM_DOMAIN_RAW`)."""
_SCRIPTS_OWN: Final = "its script uses tracemalloc itself"
_AGENT: Final = "ddptop/agent/"
_MOST: Final = 2_000
"""New objects whose origin is looked up at most."""
_MOST_BYTES: Final = 32 << 20
"""Bytes of a record that is read whole at most: it is read at once."""

_FLAGS: Final = type.__dict__["__flags__"]
_HAS_DICT_BEFORE: Final = 1 << 4
"""Flag of types in Python 3.11: two pointers to the attributes stand before the head of the collector."""
_BEFORE: Final = 32
"""Bytes from the beginning of their memory to the object."""


def check_untraced(names: Container[int] = ()) -> None:
    """Raise `Unanswered` where the script records allocations itself: a census would take minutes then.

    Also where it may begin to unnoticed: `names` are the addresses of all that its modules and functions have.
    """
    if tracemalloc.is_tracing() or address_of(tracemalloc.start) in names:
        raise Unanswered(_SCRIPTS_OWN)


class Origins:
    """The record of the allocations of some steps."""

    def __init__(self) -> None:
        """Begin it; raises `Unanswered` as `check_untraced`."""
        check_untraced()
        self._is_ours = True
        self._start: Callable[..., None] = tracemalloc.start
        begin = tracemalloc.start

        def begun_by_script(nframe: int = 1) -> None:
            # From now on it is the script's record.
            self._is_ours = False
            begin(nframe)

        self._shadow: Callable[..., None] = begun_by_script
        # Before Python 3.12.9 and 3.13.2 the end of a record crashes a thread without the interpreter lock that is
        # about to record an allocation (https://github.com/python/cpython/issues/128679). Nothing of the domain that
        # such threads may use is recorded: no object is in it, and any other one needs the lock. Those that have begun
        # an allocation in between wait for the lock, and get it in time.
        get, put = _allocators()
        raw = _Allocator()
        get(_RAW, raw)
        tracemalloc.start = begun_by_script
        begin(_FRAMES)
        put(_RAW, raw)
        self._settles_at = time.monotonic() + _SETTLES_S

    @property
    def own_bytes(self) -> int:
        """Memory that the record itself takes."""
        return tracemalloc.get_tracemalloc_memory() if self._is_ours else 0

    def end(self) -> None:
        """End it, unless it is the script's."""
        if tracemalloc.start is self._shadow:
            tracemalloc.start = self._start
        if self._is_ours and tracemalloc.is_tracing():
            time.sleep(max(0.0, self._settles_at - time.monotonic()))
            tracemalloc.stop()
        self._is_ours = False

    def check(self) -> None:
        """Raise `Unanswered` where the script has begun or ended a record meanwhile."""
        if not (self._is_ours and tracemalloc.is_tracing()):
            raise Unanswered(_SCRIPTS_OWN)

    def take(self, objects: Iterable[list[object]], within: Time) -> Made:
        """End it, and return where those of some objects were made that are new."""
        # As little as possible is allocated meanwhile: it is all recorded.
        pieces = (piece for some in objects for piece in within.chunks(some))
        new = ((each, trace) for each in chain.from_iterable(pieces) if (trace := _trace(each)) is not None)
        found = list(islice(new, _MOST))
        blocks = list(_tracemalloc._get_traces()) if self.own_bytes < _MOST_BYTES and within.has(0.0) else []
        self.end()
        return Made(found, blocks)


class Made:
    """The stacks that have made objects, by their addresses: for as long as these objects live."""

    def __init__(self, found: Iterable[tuple[object, Any]], blocks: Sequence[Any]) -> None:
        """Take new objects with their stacks, and all blocks of memory that were allocated and live."""
        self._found = {address_of(each): (each, trace) for each, trace in found}
        self._blocks = blocks

    def is_new(self, each: object) -> bool:
        """Say whether an object was made within these steps."""
        return address_of(each) in self._found

    def of_types(self, types: Container[int]) -> list[object]:
        """Return those of types with these addresses."""
        return [each for each, _ in self._found.values() if address_of(type(each)) in types]

    def line(self, each: object, sources: Sources) -> str:
        """Return the line of the script that made an object, or a library's: `train.py:52`; empty: ours, or unknown."""
        return _line(self._found.get(address_of(each), (each, ()))[1], sources)

    def of_objects(self, sources: Sources) -> tuple[str, int]:
        """Return the line with the most memory of Python objects, and its bytes; empty where there is none."""
        found: Counter[str] = Counter()
        lines: dict[int, str] = {}
        for domain, size, frames, *_ in self._blocks:
            # NumPy's arrays have a domain of their own.
            if domain == 0:
                if address_of(frames) not in lines:
                    lines[address_of(frames)] = "" if _is_ours(frames, sources) else _line(frames, sources)
                found[lines[address_of(frames)]] += size
        del found[""]
        return found.most_common(1)[0] if found else ("", 0)


def _line(frames: Sequence[tuple[str, int]], sources: Sources) -> str:
    """Return the innermost line of the script in a stack, its innermost frame first, or else a library's."""
    known = [(file, line) for file, line in frames if not file.startswith("<frozen")]
    file, line = next((each for each in known if not sources.is_library(each[0])), next(iter(known), ("", 0)))
    name = sources.name(file) if file else ""
    return f"{name}:{line}" if name and not name.startswith(_AGENT) else ""


def _is_ours(frames: Sequence[tuple[str, int]], sources: Sources) -> bool:
    """Say whether the agent itself has allocated a block, as the lists of a census: below them stands the script."""
    return bool(frames) and sources.name(frames[0][0]).startswith(_AGENT)


def _trace(each: object) -> Any:
    """Return the stack that has made an object, the innermost frame first; None: it is not recorded."""
    if sys.version_info[:2] == (3, 11) and _FLAGS.__get__(type(each)) & _HAS_DICT_BEFORE:
        # There the function for it looks at the wrong address.
        return _read()(0, id(each) - _BEFORE)
    return _tracemalloc._get_object_traceback(each)


class _Allocator(ctypes.Structure):
    """The functions that allocate the memory of a domain (`PyMemAllocatorEx`)."""

    _fields_: ClassVar[list[Any]] = [
        (name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")
    ]


@functools.cache
def _allocators() -> tuple[Any, Any]:
    """Return the functions that read and set the allocator of a domain; both keep the interpreter lock."""
    get, put = ctypes.pythonapi.PyMem_GetAllocator, ctypes.pythonapi.PyMem_SetAllocator
    get.argtypes = put.argtypes = [ctypes.c_int, ctypes.POINTER(_Allocator)]
    get.restype = put.restype = None
    return get, put


@functools.cache
def _read() -> Any:
    read = ctypes.pythonapi._PyTraceMalloc_GetTraceback
    read.argtypes = [ctypes.c_uint, ctypes.c_size_t]
    read.restype = ctypes.py_object
    return read
