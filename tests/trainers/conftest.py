"""What the tests of the trainers share: programs run as the user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from ddptop.trainers import simplenet

Run = Callable[..., int]


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run simplenet as a group of one in this process; the arguments are those of its command line."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "DDPTOP_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    return lambda *arguments: simplenet.main([str(argument) for argument in arguments])


def torchrun(ranks: int, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a module under torchrun, on a port that the system chooses."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", *arguments,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False)
