"""Memory and load of the device and the process; None where a number is not available.

It reads counters of the allocator and the driver only, and does not wait for the device.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil


class Reading(NamedTuple):
    """One reading, by the names that a heartbeat has for it."""

    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    cpu_percent: float | None = None
    """Of this process and its children; 100 is one core."""
    device_percent: float | None = None


class Gauges:
    """Reads memory and load, about once a second, from the agent's thread."""

    def __init__(self) -> None:
        self._self = psutil.Process()
        self._self.cpu_percent()
        self._children: dict[int, psutil.Process] = {}
        self._board: Board | None = None
        self._total = psutil.virtual_memory().total

    @property
    def children(self) -> int:
        """Child processes of the main thread at the last reading."""
        return len(self._children)

    def read(self, device: str | None) -> Reading:
        """Return memory of `device` where that is an accelerator, else of the process."""
        cpu = self._cpu()
        torch = sys.modules.get("torch")
        if device is not None and device.startswith("cuda") and torch is not None:
            index = torch.device(device).index or 0
            properties = torch.cuda.get_device_properties(index)
            if self._board is None:
                self._board = Board(str(getattr(properties, "uuid", "")), index, os.environ)
            reserved = int(torch.cuda.memory_reserved(index))
            memory = max(reserved, self._board.memory_of(os.getpid()) or 0)
            return Reading(memory, int(properties.total_memory), cpu, self._board.load)
        return Reading(self._self.memory_info().rss, self._total, cpu)

    def _cpu(self) -> float | None:
        # One small file instead of all of /proc: data workers are children of the main thread.
        try:
            thread = threading.main_thread().native_id
            listed = Path(f"/proc/self/task/{thread}/children").read_text().split()
        except OSError:
            listed = []
        alive = {int(pid) for pid in listed}
        for pid in alive - self._children.keys():
            try:
                child = psutil.Process(pid)
                child.cpu_percent()
                self._children[pid] = child
            except psutil.Error:
                continue
        for pid in self._children.keys() - alive:
            del self._children[pid]
        total = self._self.cpu_percent()
        for child in self._children.values():
            try:
                total += child.cpu_percent()
            except psutil.Error:
                continue
        return total


class Board:
    """A device as the driver's management library (NVML) knows it: whatever its number is in this process.

    CUDA numbers devices by `CUDA_VISIBLE_DEVICES`, NVML does not; so the device is looked up by its UUID.  Of a part of
    a device (MIG) the load is not known.  What cannot be read once is not asked for again.
    """

    def __init__(self, uuid: str, index: int, environment: Mapping[str, str]) -> None:
        """Look up a device.

        Args:
            uuid: that of CUDA, without the prefix; empty where it has none.
            index: the number of the device in this process.
            environment: of this process.
        """
        self._tells_load = self._tells_memory = True
        self._nvml, self._handle = _open(_names(uuid, index, environment))

    @property
    def handle(self) -> tuple[Any, Any]:
        """NVML and its handle of the device, None for what there is not."""
        return self._nvml, self._handle

    @property
    def load(self) -> float | None:
        """Load of the device in percent."""
        if self._handle is None or not self._tells_load:
            return None
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
        except self._nvml.NVMLError:
            self._tells_load = False
            return None

    def memory_of(self, pid: int) -> int | None:
        """Return the bytes of a process on the device, CUDA's own included; None where the driver does not say it.

        It may know the process by another number than its container does.
        """
        if self._handle is None or not self._tells_memory:
            return None
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:
            self._tells_memory = False
            return None
        return next((each.usedGpuMemory for each in running if each.pid == pid), None)


def _names(uuid: str, index: int, environment: Mapping[str, str]) -> list[str]:
    """Return the names under which NVML may know a device, the most exact first."""
    listed = [each.strip() for each in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    own = listed[index] if index < len(listed) else ""
    # CUDA's UUID of a part of a device may be that of the whole.
    parts = [own] if own.startswith("MIG-") else []
    return [*parts, f"GPU-{uuid}", f"MIG-{uuid}"] if uuid else parts


def _open(names: Iterable[str]) -> tuple[Any, Any]:
    """Return NVML and its handle of the first name that it knows, None for what there is not."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        # No library, no driver, or one of another version.
        return None, None
    for name in names:
        try:
            return pynvml, pynvml.nvmlDeviceGetHandleByUUID(name)
        except pynvml.NVMLError:
            continue
    return pynvml, None
