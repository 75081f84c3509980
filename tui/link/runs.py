"""The fleet of this machine: a link to each live run, a last frame of each ended one, and the load of the machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ddptop.agent.client import runs
from ddptop.agent.client.acting.control import RunControl
from ddptop.agent.client.machine import Machine
from ddptop.agent.client.start.request import Request
from ddptop.agent.client.watch import Link
from ddptop.tui.drawing import units
from ddptop.tui.link.fleet import Listing, RunLine, line_of
from ddptop.tui.link.source import Refused, frame_now

if TYPE_CHECKING:
    from ddptop.tui.launch.programs import Option

BUDGET_S: Final = 0.15
"""Longest work of one look: what is recorded of ended runs is read bit by bit."""
MOST_POLLS: Final = 4
"""Of one run in one look."""


class Runs:
    """The `Fleet` of this user's run directories."""

    def __init__(
        self, connect: Callable[[runs.Run], Link], who: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """List runs by links that `connect` makes, and act on them for `who`."""
        self._connect = connect
        self._who = who
        self._clock = clock
        self._machine: Machine | None = None
        self._looking = threading.Lock()
        """A socket may change threads only with such a barrier between."""
        self._links: dict[str, Link] = {}
        """By id of the run; those with something still to be read."""
        self._over: dict[str, RunLine] = {}
        """The same of runs that have ended and are read to the end."""
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
            elif run_id in self._links:
                yield self._line(run_id, self._links[run_id], deadline)

    def _known(self, shown: str | None) -> dict[str, str]:
        """Return the name of each run by its id, newest first, with a link to each that needs one.

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
                if run_id in self._links and self._links[run_id].directory.name != run.name:
                    self._links.pop(run_id).close()
                if run_id != shown and run_id not in self._over and run_id not in self._links:
                    self._links[run_id] = self._connect(run)
            except runs.RunDirError:
                # Removed, or damaged, since it was listed.
                continue
        for run_id in [run_id for run_id in self._links if run_id not in known or run_id == shown]:
            self._links.pop(run_id).close()
        return known

    def _line(self, run_id: str, link: Link, deadline: float) -> RunLine:
        for _ in range(MOST_POLLS):
            link.poll()
            if self._clock() > deadline:
                break
        line = line_of(frame_now(link))
        if line.over and link.settled:
            self._over[run_id] = line
            self._links.pop(run_id).close()
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
            for link in self._links.values():
                link.close()
            self._links.clear()
