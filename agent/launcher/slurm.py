"""The variables by which Slurm tells a process its job and its step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

JOB: Final = "SLURM_JOB_ID"
STEP: Final = "SLURM_STEP_ID"
_LAST_STEP: Final = 0xFFFFFFF0
"""Numbers from here on are steps that Slurm makes by itself: the batch script, the shell of `salloc`."""


def is_task(environment: Mapping[str, str]) -> bool:
    """Say whether an environment is that of a task which `srun` has started."""
    step = environment.get(STEP, "")
    return JOB in environment and step.isdecimal() and int(step) < _LAST_STEP
