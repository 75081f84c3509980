"""Stacks of processes over some seconds, by py-spy, and the CPU time of their main threads.

One py-spy looks many times, and the process is never stopped: to start it costs more than twenty looks do, and to end
it at any moment hurts nobody. Its looks come at random moments, so that they have no rhythm of the training's.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from ddptop.agent.observer.inspection.dumps import Spy
from ddptop.agent.observer.sampling import phases

WINDOW_S: Final = 3
"""Seconds of one window of looks."""
RATE: Final = 10
"""Looks a second of each of the two kinds; see `phases`."""
_LATEST_S: Final = 10.0
"""Seconds after its beginning at which a window is given up."""
_NICE: Final = 10


class Found(NamedTuple):
    """What came of a window."""

    began_ns: int
    ended_ns: int
    look: phases.Look
    problem: str
    """The reason for which there are no looks; empty where there are."""
    worker: Mapping[str, int] = MappingProxyType({})
    """Stacks of one of its data workers, where that was looked at."""


def nothing(problem: str) -> Found:
    """Return that there are no looks, and why."""
    return Found(time.time_ns(), time.time_ns(), phases.Look({}, {}, None), problem)


class Window:
    """Looks at one rank."""

    def __init__(
        self, program: str, rank: int, pid: int, selector: selectors.BaseSelector, worker: int | None = None
    ) -> None:
        """Begin.

        Args:
            program: the path of py-spy.
            rank: of the process.
            pid: of the process, which is known to be the one that is meant.
            selector: has functions as data, which read what py-spy writes.
            worker: a data worker of it, which is looked at, too.

        Raises:
            OSError: py-spy cannot be started.
        """
        self.rank, self._pid, self._worker = rank, pid, worker
        self._began_ns, self._began = time.time_ns(), time.monotonic()
        self._ran = _ran(pid)
        command = (
            *(program, "record", "--nonblocking", "--format", "raw", "--threads", "--full-filenames"),
            *("--rate", str(RATE), "--duration", str(WINDOW_S), "--output", "/dev/stdout"),
        )
        kinds = [("--idle", "--pid", str(pid)), ("--pid", str(pid))]
        if worker is not None:
            kinds.append(("--idle", "--pid", str(worker)))
        self._spies: list[Spy] = []
        try:
            for kind in kinds:
                self._spies.append(Spy((*command, *kind), rank, selector))
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, self._spies[-1].pid, _NICE)
        except OSError:
            self.give_up()
            raise

    @property
    def is_over(self) -> bool:
        """True once all is said."""
        return all(spy.is_over for spy in self._spies)

    @property
    def is_late(self) -> bool:
        """True once nothing is to be waited for any more."""
        return time.monotonic() > self._began + _LATEST_S

    def end(self) -> Found:
        """Return what was found."""
        busy, late, starved = _parts(self._ran, _ran(self._pid))
        (out, problem), *others = (spy.end() for spy in self._spies)
        pids = (self._pid, self._pid, self._worker or 0)
        seen, active, *worker = map(phases.read, [out, *(each for each, _ in others)], pids)
        # Without the system's number of a thread py-spy takes it for active.
        is_numbered = f"thread ({self._pid})".encode() in out
        look = phases.Look(seen, active if is_numbered else None, busy, late, starved)
        return Found(self._began_ns, time.time_ns(), look, "" if seen else problem, *worker)

    def give_up(self) -> None:
        """End the looks."""
        for spy in self._spies:
            spy.give_up()


class _Ran(NamedTuple):
    """The time for which a main thread has run and has waited for a CPU, and how often it has begun to do so."""

    at_ns: int
    ran_ns: int
    queued_ns: int
    woken: int
    preempted: int


def _ran(pid: int) -> _Ran | None:
    """Read what the kernel counts of a main thread; None where it counts nothing."""
    folder = Path(f"/proc/{pid}/task/{pid}")
    try:
        # From the kernel's sched-stats.rst: time on a CPU, and time on a run queue.
        ran, queued, _ = (folder / "schedstat").read_text().split()
        lines = (folder / "status").read_text().splitlines()
        woken, preempted = (int(line.split()[1]) for line in lines[-2:])
        return _Ran(time.monotonic_ns(), int(ran), int(queued), woken, preempted)
    except (OSError, ValueError, IndexError):
        return None


def _parts(began: _Ran | None, ended: _Ran | None) -> tuple[float | None, float, float | None]:
    """Return the parts of the time in which a thread ran or was kept from it, in which it was late to wake up, and in
    which it had no CPU at all.
    """
    if began is None or ended is None:
        return None, 0.0, None
    passed, ran, queued, woken, preempted = (now - then for now, then in zip(ended, began, strict=True))
    # Each time that it is to run again it may have to wait for a CPU.
    late = queued * woken / max(1, woken + preempted)
    busy, late, starved = (min(1.0, max(0.0, ns / passed)) for ns in (ran + queued - late, late, queued))
    return busy, late, starved
