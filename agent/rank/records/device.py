"""Memory and load of the device and the process; None where a number is not available.

It reads counters of the allocator and the driver only, and does not wait for the device.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import psutil


class Reading(NamedTuple):
    """One reading, in bytes and percent."""

    memory: int | None
    memory_total: int | None
    cpu: float | None
    """Of this process and its children; 100 is one core."""
    device: float | None


class Gauges:
    """Reads memory and load, about once a second, from the agent's thread."""

    def __init__(self) -> None:
        self._self = psutil.Process()
        self._self.cpu_percent()
        self._children: dict[int, psutil.Process] = {}
        self._handle: Any = None
        self._total = psutil.virtual_memory().total

    def read(self, device: str | None) -> Reading:
        """Return memory of `device` where that is an accelerator, else of the process."""
        cpu = self._cpu()
        torch = sys.modules.get("torch")
        if device is not None and device.startswith("cuda") and torch is not None:
            index = torch.device(device).index or 0
            return Reading(
                int(torch.cuda.memory_reserved(index)),
                int(torch.cuda.get_device_properties(index).total_memory),
                cpu,
                self._utilization(torch, index),
            )
        return Reading(self._self.memory_info().rss, self._total, cpu, None)

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

    def _utilization(self, torch: Any, index: int) -> float | None:
        import pynvml

        try:
            if self._handle is None:
                pynvml.nvmlInit()
                identifier = f"GPU-{torch.cuda.get_device_properties(index).uuid}"
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(identifier)
            return float(pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
        except (AttributeError, pynvml.NVMLError):
            return None
