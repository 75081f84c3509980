"""A look at the memory of a real run: planted leaks are named, and of a healthy rank nothing is said to grow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.harness import ddptop
from support.processes.ranks import observed

PROGRAM = """
import ctypes, sys, time
import numpy, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    kept = []
    arrays = []
    while True:
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        if dist.get_rank() == 1:
            match sys.argv[1]:
                case "tensor":
                    kept.append(torch.ones(64, 32, 256))
                case "array":
                    arrays.append(numpy.ones((256, 1024)))
                case "c":
                    ctypes.memset(library.malloc(4 << 20), 1, 4 << 20)
        optimizer.step()
        time.sleep(0.02)

main()
"""


def line(text: str) -> str:
    """Return the line of the program that has a text: `leaks.py:26`."""
    (number,) = (number for number, each in enumerate(PROGRAM.splitlines(), 1) if text in each)
    return f"leaks.py:{number}"


TENSOR = f"{line('kept.append')} made 3 more float32[64, 32, 256] in 3 steps (6 MiB), held by list `kept` of main()"
ARRAY = (
    f"{line('arrays.append')} made 3 more NumPy float64[256, 1024] in 3 steps (6 MiB), held by list `arrays` of main()"
)


@pytest.mark.parametrize(
    ("leak", "says"),
    [("tensor", TENSOR), ("array", ARRAY), ("c", "not Python: the C heap grew by 12 MiB in 3 steps")],
)
def test_a_leak_is_named_and_the_healthy_rank_is_not(leak: str, says: str, tmp_path: Path) -> None:
    """By its line and what holds it, or as nothing of Python's; the result is kept with the run."""
    script = tmp_path / "leaks.py"
    script.write_text(PROGRAM)
    with observed(f"leaks-{leak}", script, leak):
        found = json.loads(ddptop("memory", f"leaks-{leak}", "--json").stdout)
        assert [each["rank"] for each in found["ranks"]] == [1, 0]
        first, second = found["ranks"]
        assert first["cause"].startswith(says)
        assert second["cause"] == "nothing grew in 3 steps"
        assert found["steps"][1] == found["steps"][0] + 2
        (kept,) = json.loads(ddptop("memory", f"leaks-{leak}", "--list", "--json").stdout)
        assert kept == found
        missing = ddptop("memory", f"leaks-{leak}", "--ranks", "7")
        assert (missing.returncode, missing.stdout) == (1, "")
        assert missing.stderr.splitlines()[-1].endswith("rank 7: not in this run, or ended")
