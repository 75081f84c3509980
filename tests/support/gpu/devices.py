"""Whether there is a CUDA device, told without torch, which takes seconds to import.

`DDPTOP_TEST_DEVICE=cpu` rehearses the tests without a device: their programs run on the CPU with gloo, and what needs
CUDA is skipped, or not compared.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Final

VARIABLE: Final = "DDPTOP_TEST_DEVICE"
NONE: Final = "no CUDA device"


@lru_cache(maxsize=1)
def count() -> int:
    """Return the number of CUDA devices that a process started from here sees."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None and (not listed.strip() or listed.strip().startswith("-")):
        return 0
    # A MIG device has no file of its own there, but the device that it is a part of has.
    found = len([each for each in Path("/dev").glob("nvidia[0-9]*") if each.name[6:].isdigit()])
    if not found and shutil.which("nvidia-smi"):
        lines = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.splitlines()
        found = sum(line.startswith("GPU ") for line in lines)
    return min(found, len(listed.split(","))) if listed is not None else found


def rehearsing() -> bool:
    """Say whether the programs are to run on the CPU, to see that they run at all."""
    return os.environ.get(VARIABLE) == "cpu"


def device() -> str | None:
    """Return the kind of device that the programs are to use, `cuda` or `cpu`; None where there is none."""
    if rehearsing():
        return "cpu"
    return "cuda" if count() else None
