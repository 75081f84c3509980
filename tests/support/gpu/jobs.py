"""A program of `tests/gpu/programs` as a group of ranks under torchrun, and what its ranks have measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from support.gpu import devices

PROGRAMS: Final = Path(__file__).resolve().parents[2] / "gpu" / "programs"
_TESTS: Final = PROGRAMS.parents[1]
LONGEST_S: Final = 150.0
_ALONE: Final = ("--standalone", "--local-addr=127.0.0.1")
"""Options of torchrun; without the second the ranks meet at the name of the host, which need not resolve."""


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a program, which finds the tests' own modules, and all of whose steps are recorded."""
    path = os.pathsep.join(filter(None, (str(_TESTS), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "DDPTOP_RECORD_EVERY": "1", **more}


def job(
    program: str,
    *arguments: str,
    world: int = 1,
    backend: str | None = None,
    agent: bool = True,
    device: str | None = None,
    **more: str,
) -> list[dict[str, Any]]:
    """Run a program to its end and return what each rank has reported, by rank.

    Args:
        program: name of the file, without `.py`.
        arguments: its own.
        world: number of ranks.
        backend: of torch.distributed; None: NCCL on CUDA, gloo on the CPU.
        agent: whether the ranks run under the agent.
        device: its kind; None: that of these tests.
        more: variables of the environment.

    Raises:
        AssertionError: a rank has failed, or has reported nothing.
    """
    device = device or devices.device()
    assert device is not None, devices.NONE
    # The rehearsal shares its cores with whatever else runs.
    limit_s = LONGEST_S * (4 if devices.rehearsing() else 1)
    with tempfile.TemporaryDirectory(prefix="dtg-", dir="/tmp") as folder:
        torchrun = [sys.executable, "-m", "torch.distributed.run", *_ALONE, f"--nproc-per-node={world}"]
        script = str(PROGRAMS / f"{program}.py")
        own = ["--device", device, "--backend", backend or ("nccl" if device == "cuda" else "gloo"), "--out", folder]
        done = subprocess.run(
            [*torchrun, *(("-m", "ddptop.agent") if agent else ()), script, *own, *arguments],
            env=environment(**more),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        )
        said = f"{program}: exit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-6000:]}"
        assert done.returncode == 0, said
        reports = [Path(folder) / f"rank{rank}.json" for rank in range(world)]
        assert all(report.exists() for report in reports), said
        return [json.loads(report.read_text()) for report in reports]
