"""Processes of a program that spawns its own ranks in which no agent starts: they have a PYTHONPATH of their own.

A rank announces itself, and a program may take long before it starts one. Those that never will are told from their
environments, as far as these can be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

import psutil

from ddptop.agent.run import identity
from ddptop.agent.run.identity import Process
from ddptop.agent.startup import pythonpath

AWAITED_S: Final = 60.0
"""Seconds after the start of the program in which ranks announce themselves."""
_LOOK_S: Final = 5.0
_USED_S: Final = 0.5
"""CPU time between two looks from which on they work."""
_FOLDER: Final = os.path.dirname(os.path.abspath(pythonpath.__file__))


class Unseen:
    """Looks for them as long as no rank has announced itself, until they are told."""

    def __init__(self, now: float) -> None:
        """Begin at the start of the program; `now` is of a clock in seconds."""
        self._due = now + AWAITED_S
        self._used: dict[Process, float] = {}
        self._told = False

    def is_due(self, now: float) -> bool:
        """Say whether it is time to look at the processes of the run."""
        return not self._told and now >= self._due

    def look(self, found: Iterable[Process], now: float) -> str | None:
        """Return the line that tells of them, once, where some of the processes found use CPU; else None."""
        self._due = now + _LOOK_S
        used = {each: _used(each) for each in found if not _starts_agent(each)}
        busy = sum(used[each] - before for each, before in self._used.items() if each in used) >= _USED_S
        self._used = used
        if not busy:
            return None
        self._told = True
        return (
            "no rank has announced itself: processes with a PYTHONPATH of their own are not seen"
            " (ddptop help frameworks)"
        )


def _starts_agent(process: Process) -> bool:
    return _FOLDER in identity.variable(process.pid, "PYTHONPATH").split(os.pathsep)


def _used(process: Process) -> float:
    try:
        times = psutil.Process(process.pid).cpu_times()
    except (psutil.Error, OSError):
        return 0.0
    return float(times.user + times.system)
