"""Memory and load of the device and the process; None where a number is not available.

It reads counters of the allocator and the driver only, and does not wait for the device.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Final, NamedTuple

import psutil

from ddptop.agent.launcher.boards import Board, board_of
from ddptop.agent.rank.faults import Faults
from ddptop.agent.run.cores import Usage

_FRESH_S: Final = 0.5
"""Seconds for which a reading is as good as a new one."""


class Reading(NamedTuple):
    """One reading, by the names that a heartbeat has for it."""

    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    cpu_percent: float | None = None
    """Of this process and its children; 100 is one core."""
    device_percent: float | None = None


class Gauges:
    """Reads memory and load, about once a second, from the agent's thread."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._due = 0.0
        self.last = Reading()
        """The numbers of the last heartbeat."""
        self._self = psutil.Process()
        self._usage = Usage(os.getpid())
        self._board: Board | None = None
        self._total = psutil.virtual_memory().total

    @property
    def children(self) -> int:
        """Child processes of the main thread at the last reading."""
        return self._usage.children

    def read(self, device: str | None) -> Reading:
        """Return the numbers of now, or of a moment ago: each of them may have to wait for the interpreter.

        The memory is that of `device` where that is an accelerator, else of the process.
        """
        if time.monotonic() >= self._due:
            self._due, self.last = time.monotonic() + _FRESH_S, Reading()
            # Without descriptors /proc cannot be read; the sign of life matters more.
            with self._faults.noted("reading memory and load"):
                self.last = self._read(device)
        return self.last

    def _read(self, device: str | None) -> Reading:
        cpu = self._usage.percent()
        torch = sys.modules.get("torch")
        if device is not None and device.startswith("cuda") and torch is not None:
            index = torch.device(device).index or 0
            properties = torch.cuda.get_device_properties(index)
            if self._board is None:
                self._board = board_of(str(getattr(properties, "uuid", "")), index, os.environ)
            reserved = int(torch.cuda.memory_reserved(index))
            memory = max(reserved, self._board.memory_of(os.getpid()) or 0)
            return Reading(memory, int(properties.total_memory), cpu, self._board.load)
        return Reading(self._self.memory_info().rss, self._total, cpu)
