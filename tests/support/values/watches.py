"""Watches of runs that a test has made."""

from __future__ import annotations

from typing import Any

from ddptop.agent.client.runs import Run
from ddptop.agent.client.watch import Watch
from ddptop.agent.run.rundir import RunDir


def watched(directory: RunDir, **how: Any) -> Watch:
    """Watch the run of a directory."""
    return Watch(Run(directory), "test", **how)
