"""The cores, the memory and the GPUs of the machine, and how much of them is in use.

Through psutil and NVML, without torch; a number, or None where it cannot be had. Both are loaded at the first look: the
dashboard is on the screen before the list of the runs is.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddptop.agent.observer.launcher import machine

if TYPE_CHECKING:
    import pynvml


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """One GPU at one moment."""

    percent: float | None
    memory_bytes: int | None
    memory_total_bytes: int | None


@dataclass(frozen=True, slots=True)
class HostLoad:
    """The machine at one moment."""

    cores: int
    """That a run started here may use."""
    cpu_percent: float | None
    """Of all cores, since the look before; None at the first."""
    memory_bytes: int
    """Not to be had any more."""
    memory_total_bytes: int
    gpus: tuple[GpuLoad, ...] = ()


class Host:
    """Looks at this machine now and then."""

    def __init__(self) -> None:
        import pynvml

        self._looked = False
        self._gpus: list[pynvml.c_nvmlDevice_t] = []
        # No driver, no GPU.
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            self._gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]

    def look(self) -> HostLoad:
        """Return its load since the look before."""
        import psutil

        cpu, looked = psutil.cpu_percent(), self._looked
        self._looked = True
        memory = psutil.virtual_memory()
        gpus = tuple(map(_load, self._gpus))
        return HostLoad(machine.cores(), cpu if looked else None, memory.total - memory.available, memory.total, gpus)


def _load(handle: pynvml.c_nvmlDevice_t) -> GpuLoad:
    import pynvml

    used: int | None = None
    total: int | None = None
    percent: float | None = None
    with contextlib.suppress(pynvml.NVMLError):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        used, total = int(memory.used), int(memory.total)
    with contextlib.suppress(pynvml.NVMLError):
        percent = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    return GpuLoad(percent, used, total)
