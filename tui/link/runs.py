"""The fleet of this machine: a watch of each live run, a last frame of each ended one, and the load of the machine."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ddptop.agent.client import runs
from ddptop.agent.client.acting.control import RunControl
from ddptop.agent.client.host.machine import Machine
from ddptop.agent.client.sources import unprepared
from ddptop.agent.client.start.request import Request
from ddptop.agent.client.watch import Watch
from ddptop.tui.drawing import units
from ddptop.tui.link.fleet import Listing, RunLine, line_of
from ddptop.tui.link.source import Refused

if TYPE_CHECKING:
    from ddptop.tui.launch.programs import Option

UNPREPARED_S: Final = 3.0
"""Seconds between two looks for groups that nobody prepared: each takes some tens of milliseconds."""
BUDGET_S: Final = 0.15
"""Work of one look after which the other runs are shown by their records, until the next one."""


class Runs:
    """The `Fleet` of this user's run directories."""

    def __init__(
        self, connect: Callable[[runs.Run], Watch], who: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """List runs by watches that `connect` makes, and act on them for `who`."""
        self._connect = connect
        self._who = who
        self._clock = clock
        self._machine: Machine | None = None
        self._looking = threading.Lock()
        """A socket may change threads only with such a barrier between."""
        self._watches: dict[str, Watch] = {}
        """By id of the run; those with something still to be read."""
        self._over: dict[str, RunLine] = {}
        """The same of runs that have ended and are read to the end."""
        self._unprepared: list[RunLine] = []
        """The groups that nobody prepared and nobody has met, as they were seen last."""
        self._unprepared_due = -math.inf
        self._options: dict[str, tuple[Option, ...]] = {}

    def listing(self, shown: RunLine | None) -> Listing:
        """Look at all runs; see `Fleet.listing`."""
        with self._looking:
            lines = list(self._lines(shown, self._clock() + BUDGET_S))
            self._machine = self._machine or Machine()
            return Listing(sorted(lines, key=lambda line: line.over), self._machine.look())

    def _lines(self, shown: RunLine | None, deadline: float) -> Iterable[RunLine]:
        known = self._known(None if shown is None else shown.run_id)
        for run_id, name in known.items():
            if shown is not None and run_id == shown.run_id:
                yield replace(shown, run=name)
            elif run_id in self._over:
                # An ended run gives its name to the next of several hosts.
                yield replace(self._over[run_id], run=name)
            elif run_id in self._watches:
                yield self._line(run_id, self._watches[run_id], deadline)
        if self._clock() >= self._unprepared_due:
            self._unprepared = [line_of(unprepared.frame_of(group)) for group in unprepared.found()]
            self._unprepared_due = self._clock() + UNPREPARED_S
        yield from (line for line in self._unprepared if line.run_id not in known)

    def _known(self, shown: str | None) -> dict[str, str]:
        """Return the name of each run by its id, newest first, with a watch of each that needs one.

        `shown` is the id of the one that needs none.
        """
        known: dict[str, str] = {}
        try:
            found = runs.listed()
        except (OSError, runs.RunDirError):
            # The folder of runs went away under our eyes; the run shown stays.
            found = []
        for run in found:
            try:
                run_id = run.record().run_id
                known[run_id] = run.name
                if run_id in self._watches and self._watches[run_id].run.name != run.name:
                    self._watches.pop(run_id).close()
                if run_id != shown and run_id not in self._over and run_id not in self._watches:
                    self._watches[run_id] = self._connect(run)
            except runs.RunDirError:
                # Removed, or damaged, since it was listed.
                continue
        for run_id in [run_id for run_id in self._watches if run_id not in known or run_id == shown]:
            self._watches.pop(run_id).close()
        return known

    def _line(self, run_id: str, watch: Watch, deadline: float) -> RunLine:
        if self._clock() <= deadline:
            watch.poll()
        line = line_of(watch.frame())
        if line.over and watch.complete:
            self._over[run_id] = line
            self._watches.pop(run_id).close()
        return line

    def control(self, run: str) -> RunControl:
        """Return what acts on a run; see `Fleet.control`."""
        try:
            return RunControl.of(runs.find(run), self._who)
        except runs.RunDirError as problem:
            raise Refused(str(problem)) from problem

    def options(self, program: str) -> tuple[Option, ...]:
        """Return a program's options, asked once; see `Fleet.options`."""
        from ddptop.tui.launch import programs

        if program not in self._options:
            self._options[program] = programs.ask(program)
        return self._options[program]

    def launch(self, request: Request) -> str:
        """Start a run; see `Fleet.launch`."""
        # Here, because it loads the observer, and most dashboards launch nothing.
        from ddptop.agent.client.start.request import RequestError
        from ddptop.tui.launch.launch import launch

        try:
            return launch(request).name
        except (RequestError, runs.RunDirError) as problem:
            raise Refused(str(problem)) from problem

    def remove(self, line: RunLine) -> str:
        """Remove an ended run, as `ddptop clean` does; see `Fleet.remove`."""
        try:
            size = runs.find(line.run).remove(line.run_id)
        except runs.RunDirError as problem:
            raise Refused(str(problem)) from problem
        return f"removed {line.run}: {units.size(size).strip()} came free"

    def close(self) -> None:
        """Close all sockets."""
        with self._looking:
            for link in self._watches.values():
                link.close()
            self._watches.clear()
