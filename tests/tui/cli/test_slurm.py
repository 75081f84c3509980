"""A step of Slurm that is followed from the terminal."""

from __future__ import annotations

import signal
from typing import cast

from ddptop.agent.client.start.slurm import Step
from ddptop.tui.cli.verbs.slurm import _follow


class Impatient:
    """A step whose user presses Ctrl-C while it runs, and again, or is told to end, while it is being ended."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def wait(self) -> int:
        self.did.append("wait")
        if len(self.did) == 1:
            raise KeyboardInterrupt
        return 143

    def terminate(self) -> None:
        self.did.append("terminate")
        if self.did.count("terminate") == 1:
            raise KeyboardInterrupt
        if self.did.count("terminate") == 2:
            signal.raise_signal(signal.SIGTERM)


def test_a_step_is_ended_however_often_one_asks() -> None:
    """It runs in a session of its own, and would go on without a word."""
    step = Impatient()
    assert _follow(cast(Step, step)) == 143
    assert step.did == ["wait", "terminate", "terminate", "terminate", "wait"]
