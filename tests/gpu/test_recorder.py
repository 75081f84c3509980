"""Torch's flight recorder, with NCCL on a device: what the agent reads in it where its own hooks do not tell."""

from __future__ import annotations

from support.gpu import devices
from support.gpu.jobs import job

CALLS = 5
BYTES = (1 << 18) * 4
"""Of `programs/recorded.py`."""


def test_the_record_of_nccl_is_read():
    """Every all-reduce is in it, with its size and number, and complete once the device is idle."""
    (report,) = job("recorded", TORCH_FR_BUFFER_SIZE="200", TORCH_NCCL_TRACE_BUFFER_SIZE="200")
    assert report["facts"]["faults"] == 0
    found = [entry for entry in report["entries"] if entry["op"] == "all_reduce" and entry["bytes"] == BYTES]
    assert len(found) == CALLS
    numbers = [entry["collective_seq_id"] for entry in found]
    assert numbers == list(range(numbers[0], numbers[0] + CALLS))
    backend = "gloo" if devices.rehearsing() else "nccl"
    assert {entry["profiling_name"] for entry in found} == {f"{backend}:all_reduce"}
    assert not any(entry["is_open"] for entry in found)
    assert sum(report["counted"].values()) >= CALLS


def test_without_a_record_nothing_is_read():
    """Where torch keeps none, the agent has none, and no error."""
    (report,) = job("recorded", TORCH_FR_BUFFER_SIZE="0", TORCH_NCCL_TRACE_BUFFER_SIZE="0")
    assert report["entries"] == []
    assert (report["facts"]["faults"], sum(report["counted"].values()) >= CALLS) == (0, True)
