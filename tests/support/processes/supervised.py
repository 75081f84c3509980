"""Launched runs under test: what their script does, and waiting for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ddptop.agent import wire
from ddptop.agent.end import survey
from ddptop.agent.record.recording import read_events
from ddptop.agent.run.rundir import RunDir, is_alive
from support.harness import until
from support.processes.kept import Kept

_KEPT: Final = Kept(Path(__file__).with_name("observing.py"))


def observe(directory: RunDir) -> int:
    """Start the observer of a run, as `observers.start` does, by a fork, and return its pid."""
    directory.observer_log.touch()
    return _KEPT.start({"directory": str(directory.path), "env": dict(os.environ)})


def over(directory: RunDir) -> survey.Survey:
    """Wait until the observer has written the end and has gone, and return what is true then."""
    until(lambda: survey.look(directory).ended, "the run is over")
    until(lambda: not is_alive(directory.read().observer), "the observer has gone")
    return survey.look(directory)


def running(directory: RunDir) -> None:
    """Wait until all ranks are up."""
    until(lambda: directory.read().state == "running", "the run is running")


def events(directory: RunDir) -> list[str]:
    """Return the texts of the recorded events."""
    return [message.text for message in read_events(directory.database) if isinstance(message, wire.Event)]
