"""What to do where an action cannot be done, by the program of the run."""

from __future__ import annotations

import shlex

from ddptop.agent.control.refusals import REGISTRATION
from ddptop.trainers import CATALOGUE


def to_save(program: str) -> list[str]:
    """Return what lets a run of this program save checkpoints: a sentence, then the lines of Python that it names."""
    if program in CATALOGUE:
        return [f"restart it with: ddptop launch {shlex.quote(program)} -- --checkpoint-dir DIR"]
    return ["these lines in the script register one:", *REGISTRATION]
