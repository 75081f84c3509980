"""The memory of accelerators as torch's caching allocator counts it; nothing here waits for a device.

While a census lasts the allocator keeps its history, unless the script has it kept already, and its snapshot becomes a
file that https://docs.pytorch.org/memory_viz shows.  See https://docs.pytorch.org/docs/stable/torch_cuda_memory.html.
"""

from __future__ import annotations

import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from ddptop.agent.rank.faults import Faults, describe
from ddptop.agent.text import size
from ddptop.agent.wire import DeviceMemory

_ENTRIES: Final = 100_000
"""Events of the history at most, each of some KB."""
_RECORDS: Final = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")
"""Functions of `torch._C` that begin and end the history, whichever of torch's is called."""
_NEWEST: Final = 6
"""Readings of the memory that are said when it is full."""


def devices(before: Iterable[DeviceMemory] = ()) -> tuple[DeviceMemory, ...]:
    """Return the memory of the devices that this process uses, and its growth since `before`."""
    cuda = _cuda()
    if cuda is None:
        return ()
    earlier = {each.device: each for each in before}
    found = []
    for index in range(cuda.device_count()):
        name, (allocated, reserved, peak) = f"cuda:{index}", _counted(cuda, index)
        if reserved:
            since = earlier.get(name, DeviceMemory(name, 0, 0))
            grown = allocated - since.allocated, reserved - since.reserved
            found.append(DeviceMemory(name, allocated, reserved, *grown, peak))
    return tuple(found)


def _counted(cuda: Any, index: int) -> tuple[int, int, int]:
    """Return the bytes of a device that are allocated and reserved, and the most that were ever allocated."""
    stats = cuda.memory_stats(index)
    allocated, reserved, peak = (
        int(stats.get(f"{name}_bytes.all.{at}", 0))
        for name, at in (("allocated", "current"), ("reserved", "current"), ("allocated", "peak"))
    )
    return allocated, reserved, peak


class History:
    """The allocator's history over some steps."""

    def __init__(self) -> None:
        """Begin it, where there is a device whose history nobody records."""
        self._cuda = cuda = _cuda(has_history=True)
        self._shadowed: dict[str, Callable[..., Any]] = {}
        """By name, the functions of torch's in whose places others stand."""
        self.is_ours = cuda is not None and not _functions()._cuda_isHistoryEnabled()
        if self.is_ours:
            cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=_ENTRIES)
            for name in _RECORDS:
                if (function := getattr(_functions(), name, None)) is not None:
                    self._shadowed[name] = function
                    setattr(_functions(), name, self._shadow(function))

    def _shadow(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def by_script(*args: Any, **named: Any) -> Any:
            # From now on it is the script's history.
            self.is_ours = False
            return function(*args, **named)

        return by_script

    def snapshot(self) -> Any:
        """Return the allocator's snapshot, None where there is none."""
        return None if self._cuda is None else self._cuda.memory._snapshot()

    def close(self) -> None:
        """End it, unless it is the script's."""
        for name, function in self._shadowed.items():
            setattr(_functions(), name, function)
        self._shadowed = {}
        if self.is_ours:
            self.is_ours = False
            self._cuda.memory._record_memory_history(enabled=None)


def write(snapshot: Any, file: Path) -> None:
    """Write a snapshot of the allocator; raises `OSError`."""
    unfinished = file.with_name(f".{file.name}")
    try:
        with open(unfinished, "xb") as target:
            pickle.dump(snapshot, target)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


class Fullness:
    """Says with which numbers a device was full, and those of the newest steps before it."""

    def __init__(self, notify: Callable[[str, str], None], faults: Faults) -> None:
        """Watch nothing yet; `notify` publishes a line with its level."""
        self._notify = notify
        self._faults = faults
        self._newest: deque[tuple[int, int]] = deque(maxlen=_NEWEST)
        """Steps that were completed, and the memory then."""
        self._is_watched = False
        self._said_at = -1

    def take(self, device: str | None, step: int, memory: int | None) -> None:
        """Take note of the memory once a second, and watch the device as soon as there is one; raises nothing."""
        if device is None or not device.startswith("cuda") or memory is None:
            return
        if not self._newest or self._newest[-1][0] != step:
            self._newest.append((step, memory))
        try:
            if not self._is_watched and _cuda(has_history=True) is not None:
                self._is_watched = True
                # Torch calls it without any lock of its own, and takes the interpreter's.
                _functions()._cuda_attach_out_of_memory_observer(self._full)
        except Exception as error:
            self._faults.note("watching for a full device", error)

    def _full(self, device: int, wanted: int, total: int, free: int) -> None:
        """Say it, once for each step: torch tries again with less; called by the thread that has asked for memory."""
        try:
            newest = list(self._newest)
            step = newest[-1][0] if newest else 0
            if step == self._said_at:
                return
            self._said_at = step
            text = (
                f"out of memory on cuda:{device}: {size(wanted)} more were wanted, {size(free)} of {size(total)} free"
            )
            if (cuda := _cuda()) is not None:
                allocated, reserved, _ = _counted(cuda, device)
                text += f"; tensors have {size(allocated)}, reserved are {size(reserved)}"
            if newest:
                text += "; before: " + ", ".join(f"{size(memory)} at step {step:,}" for step, memory in newest)
            self._notify(text, "error")
        except Exception as error:
            self._faults.note(f"saying that a device is full: {describe(error)}")


def _functions() -> Any:
    """Return torch's module of functions in C++."""
    return sys.modules["torch"]._C


def _cuda(*, has_history: bool = False) -> Any:
    """Return torch's module of CUDA where this process uses a device, else None.

    Args:
        has_history: return it only with torch's own allocator. CUDA's (`cudaMallocAsync`) has numbers alone, and one of
            the script's (`CUDAPluggableAllocator`) mostly not even these: torch raises where it is asked for more.
    """
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not (cuda.is_available() and cuda.is_initialized()):
        return None
    backend = cuda.get_allocator_backend()
    return cuda if backend == "native" or (backend == "cudaMallocAsync" and not has_history) else None
