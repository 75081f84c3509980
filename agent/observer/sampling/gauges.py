"""CPU, memory and device of a process, seen from outside; None where a number is not available."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from ddptop.agent.observer.sampling.looks import uses_device


class Reading(NamedTuple):
    """One reading, by the names that a heartbeat has for it."""

    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    cpu_percent: float | None = None
    """Of the process and its children; 100 is one core."""
    device_percent: float | None = None
    device: str | None = None


class Gauge:
    """Reads memory and load of one process, about once a second."""

    def __init__(self, pid: int) -> None:
        """Begin; raises `psutil.Error` where there is no such process."""
        self._process = psutil.Process(pid)
        self._children: dict[int, psutil.Process] = {}
        self._process.cpu_percent()
        self.on_device = False
        """True where it has an accelerator open, and its number is that of the driver."""

    def read(self) -> Reading:
        """Return memory on its device, where it has one, else of the process; raises `psutil.Error`."""
        pid = self._process.pid
        cpu, memory = self._cpu(), int(self._process.memory_info().rss)
        self.on_device = uses_device(pid)
        if self.on_device:
            return _on_boards(pid)._replace(cpu_percent=cpu)
        return Reading(memory, psutil.virtual_memory().total, cpu, None, "cpu")

    def _cpu(self) -> float:
        # One small file instead of all of /proc: data workers are children of the main thread.
        pid, listed = self._process.pid, ""
        with contextlib.suppress(OSError):
            listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        alive = {int(each) for each in listed.split()}
        for each in alive - self._children.keys():
            with contextlib.suppress(psutil.Error):
                child = psutil.Process(each)
                child.cpu_percent()
                self._children[each] = child
        for each in self._children.keys() - alive:
            del self._children[each]
        total = self._process.cpu_percent()
        for child in self._children.values():
            with contextlib.suppress(psutil.Error):
                total += child.cpu_percent()
        return total


@functools.cache
def _boards() -> tuple[Any, tuple[Any, ...]]:
    """Return NVML and its handles of all boards, None for what there is not."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml, tuple(map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount())))
    except Exception:
        # No library, no driver, or one of another version.
        return None, ()


def _on_boards(pid: int) -> Reading:
    """Return what NVML says of a process; it may know it by another number than its container does."""
    nvml, handles = _boards()
    for index, handle in enumerate(handles):
        with contextlib.suppress(nvml.NVMLError):
            running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            used = next((each.usedGpuMemory for each in running if each.pid == pid), None)
            if used is not None:
                load = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
                return Reading(used, int(nvml.nvmlDeviceGetMemoryInfo(handle).total), None, load, f"cuda:{index}")
    return Reading()
