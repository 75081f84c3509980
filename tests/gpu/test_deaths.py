"""How a GPU makes a rank die, and what the report says of it: kind, rank and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.gpu import devices
from support.gpu.jobs import PROGRAMS, environment
from support.harness import ddptop

LINES = (PROGRAMS / "faults.py").read_text().splitlines()


def line_of(text: str) -> int:
    """Return the number of the line of the program with this text."""
    return 1 + next(number for number, line in enumerate(LINES) if text in line)


@pytest.mark.parametrize(
    ("fault", "kinds", "function"),
    [
        ("out-of-memory", {"device_memory"}, "fill"),
        ("assert", {"device_error"}, "look_up"),
        ("illegal", {"device_error"}, "stray"),
    ],
)
def test_a_death_on_the_device_is_told_rightly(own_base: Path, monkeypatch, fault, kinds, function):
    """The report names the last rank, what it was, and the function of the script in which it happened."""
    kind = devices.device()
    if kind == "cpu":
        if fault != "out-of-memory":
            pytest.skip(devices.NONE)
        kinds = {"host_memory"}
    # One device is enough for two ranks with gloo: the other one only notices.
    world, backend = 2, "gloo"
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    done = ddptop(
        "launch", "--plain", "--world", str(world), "--name", "dies", "--backend", backend, str(PROGRAMS / "faults.py"),
        "--", "--device", str(kind), "--backend", backend, "--out", "/tmp", "--fault", fault, timeout=150,
    )  # fmt: skip
    assert done.returncode not in (0, 2), done.stdout + done.stderr
    report = json.loads(ddptop("report", "dies", "--json").stdout)
    assert report["kind"] in kinds, report
    assert report["cause_rank"] == world - 1, report
    where = next(rank["where"] for rank in report["ranks"] if rank["rank"] == world - 1)
    # CUDA reports an illegal access at a later call: the same function, which waits for the device at its end.
    assert where is not None
    assert where.startswith("faults.py:"), where
    assert where.endswith(function), where
