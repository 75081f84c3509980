"""Devices of this machine as the driver's management library (NVML) knows them, whatever their numbers in a process."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any


class Board:
    """A device, or a part of one (MIG), whose load is not known. What the driver does not tell is asked for once."""

    def __init__(self, nvml: Any, handle: Any, uuid: str = "") -> None:
        """Read nothing yet; library and handle are None where NVML does not know it."""
        self.nvml, self.handle, self.uuid = nvml, handle, uuid
        self._tells_load = self._tells_memory = handle is not None

    @property
    def load(self) -> float | None:
        """Load of the device in percent."""
        if not self._tells_load:
            return None
        try:
            return float(self.nvml.nvmlDeviceGetUtilizationRates(self.handle).gpu)
        except self.nvml.NVMLError as problem:
            self._tells_load = not self._is_final(problem)
            return None

    def memory_of(self, pid: int) -> int | None:
        """Return the bytes of a process on the device, CUDA's own included; None where the driver does not say it.

        It may know the process by another number than its container does.
        """
        if not self._tells_memory:
            return None
        try:
            running = self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)
        except self.nvml.NVMLError as problem:
            self._tells_memory = not self._is_final(problem)
            return None
        return next((each.usedGpuMemory for each in running if each.pid == pid), None)

    @property
    def memory(self) -> tuple[int | None, int | None]:
        """Bytes in use, and all bytes of the device."""
        try:
            found = self.nvml.nvmlDeviceGetMemoryInfo(self.handle)
        except self.nvml.NVMLError:
            return None, None
        return int(found.used), int(found.total)

    def _is_final(self, problem: Exception) -> bool:
        return isinstance(problem, (self.nvml.NVMLError_NotSupported, self.nvml.NVMLError_NoPermission))


def board_of(uuid: str, index: int, environment: Mapping[str, str]) -> Board:
    """Return a device of CUDA, which numbers devices by `CUDA_VISIBLE_DEVICES`, as NVML does not.

    Args:
        uuid: that of CUDA, without the prefix; empty where it has none.
        index: the number of the device in a process.
        environment: of that process.
    """
    nvml = _nvml()
    for name in () if nvml is None else _names(uuid, index, environment):
        try:
            return Board(nvml, nvml.nvmlDeviceGetHandleByUUID(name))
        except nvml.NVMLError:
            continue
    return Board(nvml, None)


def boards() -> tuple[Board, ...]:
    """Return all devices, in the order of the driver; none where it does not answer now."""
    try:
        return _boards()
    except Exception:  # the error of a library that is imported only there
        return ()


@functools.cache
def _boards() -> tuple[Board, ...]:
    nvml = _nvml()
    if nvml is None:
        return ()
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    return tuple(Board(nvml, handle, nvml.nvmlDeviceGetUUID(handle)) for handle in handles)


def _names(uuid: str, index: int, environment: Mapping[str, str]) -> list[str]:
    """Return the names under which NVML may know a device, the most exact first."""
    listed = [each.strip() for each in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    own = listed[index] if index < len(listed) else ""
    # CUDA's UUID of a part of a device may be that of the whole.
    parts = [own] if own.startswith("MIG-") else []
    return [*parts, f"GPU-{uuid}", f"MIG-{uuid}"] if uuid else parts


def _nvml() -> Any:
    """Return NVML; None: there is no library, no driver, or one of another version."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # whatever a library of another version raises
        return None
    return pynvml
