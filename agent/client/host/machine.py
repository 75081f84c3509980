"""The load of this machine: cores, memory, GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from ddptop.agent.launcher import machine
from ddptop.agent.launcher.boards import boards


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


class Machine:
    """Looks at this machine now and then."""

    def __init__(self) -> None:
        self._looked: tuple[float, float] | None = None
        """Seconds of all cores at the look before: idle, and in all."""

    def look(self) -> HostLoad:
        """Return its load since the look before."""
        import psutil

        # Not `cpu_percent`: it remembers the look before of each thread alone, and says 0 in a new one.
        times = psutil.cpu_times()._asdict()
        within = times.get("guest", 0.0) + times.get("guest_nice", 0.0)
        idle, total = times["idle"] + times.get("iowait", 0.0), sum(times.values()) - within
        was_idle, was_total = self._looked or (idle, total)
        cpu = 100 * (1 - (idle - was_idle) / (total - was_total)) if total > was_total else None
        self._looked = idle, total
        memory = psutil.virtual_memory()
        gpus = tuple(GpuLoad(board.load, *board.memory) for board in boards())
        return HostLoad(machine.cores(), cpu, memory.total - memory.available, memory.total, gpus)
