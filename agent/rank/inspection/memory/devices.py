"""The memory of accelerators as torch's caching allocator counts it; nothing here waits for a device.

While a census lasts the allocator keeps its history, unless the script has it kept already, and its snapshot becomes a
file that https://docs.pytorch.org/memory_viz shows.  See https://docs.pytorch.org/docs/stable/torch_cuda_memory.html.
"""

from __future__ import annotations

import pickle
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ddptop.agent.rank.faults import Faults, describe
from ddptop.agent.text import size
from ddptop.agent.wire import DeviceMemory

_ENTRIES: Final = 100_000
"""Events of the history at most, each of some KB."""
_NEWEST: Final = 6
"""Readings of the memory that are said when it is full."""


def devices() -> tuple[DeviceMemory, ...]:
    """Return the memory of the devices that this process uses."""
    cuda = _cuda()
    if cuda is None:
        return ()
    found = []
    for index in range(cuda.device_count()):
        stats = cuda.memory_stats(index)
        if reserved := int(stats.get("reserved_bytes.all.current", 0)):
            found.append(
                DeviceMemory(
                    f"cuda:{index}",
                    int(stats.get("allocated_bytes.all.current", 0)),
                    reserved,
                    peak=int(stats.get("allocated_bytes.all.peak", 0)),
                )
            )
    return tuple(found)


class History:
    """The allocator's history over some steps."""

    def __init__(self) -> None:
        """Begin it, where there is a device whose history nobody records."""
        cuda = _cuda()
        self._cuda = cuda
        is_recorded = getattr(sys.modules["torch"]._C, "_cuda_isHistoryEnabled", None) if cuda is not None else None
        self.is_ours = is_recorded is not None and not is_recorded()
        if self.is_ours:
            cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=_ENTRIES)

    def end(self) -> Any:
        """End it, unless it is the script's; return the allocator's snapshot, None where there is no device."""
        if self._cuda is None:
            return None
        found = self._cuda.memory._snapshot()
        self.stop()
        return found

    def stop(self) -> None:
        """End it, unless it is the script's."""
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
        if self._is_watched:
            return
        try:
            if _cuda() is not None:
                self._is_watched = True
                attach = getattr(sys.modules["torch"]._C, "_cuda_attach_out_of_memory_observer", None)
                if attach is not None:
                    attach(self._full)
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
                stats = cuda.memory_stats(device)
                allocated, reserved = (
                    int(stats.get(f"{each}_bytes.all.current", 0)) for each in ("allocated", "reserved")
                )
                text += f"; tensors have {size(allocated)}, reserved are {size(reserved)}"
            if newest:
                text += "; before: " + ", ".join(f"{size(memory)} at step {step:,}" for step, memory in newest)
            self._notify(text, "error")
        except Exception as error:
            self._faults.note(f"saying that a device is full: {describe(error)}")


def _cuda() -> Any:
    """Return torch's module of CUDA where this process uses a device, else None."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_available() and cuda.is_initialized() else None
