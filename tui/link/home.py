"""The dashboard before a run is chosen: a source that has none yet, and becomes the run's own with the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import RunDir, RunDirError
from ddptop.tui.link.source import Refused, Source
from ddptop.tui.model.frame import Frame


def nothing(now: float) -> Frame:
    """Return the frame of no run: the one without a name."""
    return Frame(run="", state="starting", program="", world=0, at=now)


class Home:
    """A `Source` without a run, until one is opened."""

    def __init__(self, connect: Callable[[RunDir], Source]) -> None:
        self._connect = connect
        self._source: Source | None = None

    def open(self, run: str) -> None:
        """Show a run; see `Source.open`."""
        if self._source is not None:
            self._source.open(run)
            return
        try:
            directory = rundir.find(run)
            directory.read()
        except RunDirError as problem:
            raise Refused(str(problem)) from problem
        self._source = self._connect(directory)

    def poll(self) -> None:
        """Take in what has arrived."""
        if self._source is not None:
            self._source.poll()

    def frame(self, now: float) -> Frame:
        """Return the frame of the run, or of none."""
        return nothing(now) if self._source is None else self._source.frame(now)

    def watch(self, ranks: frozenset[int]) -> None:
        """Say which ranks' steps are looked at."""
        if self._source is not None:
            self._source.watch(ranks)

    def close(self) -> None:
        """Let go of it; the run goes on."""
        if self._source is not None:
            self._source.close()

    def __getattr__(self, name: str) -> Any:
        # Whatever acts on a run comes from a screen that shows one.
        return getattr(self._source, name)
