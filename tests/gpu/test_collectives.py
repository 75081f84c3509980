"""All-reduces on a device: their latency by events, with NCCL and with gloo, on one device and on several."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from support.gpu import devices
from support.gpu.jobs import job
from support.gpu.trace import inside

SIZES = (1 << 20, 16 << 20, 64 << 20)
"""Bytes of the all-reduces of `programs/collectives.py`, in their order."""


def explicit(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the program's own all-reduces in a record, without those of DDP."""
    return [call for call in record["collectives"] if call["op"] == "all_reduce" and call["bytes"] in SIZES]


def latencies_agree(report: dict[str, Any]) -> None:
    """Compare the durations of a rank's all-reduces with those by its own clock or events."""
    assert report["facts"]["faults"] == 0, report["facts"]
    assert report["facts"]["mechanism"] is not None
    for index, size in enumerate(SIZES):
        pairs = []
        for times, record in zip(report["times"], report["records"], strict=True):
            calls = explicit(record)
            assert [call["bytes"] for call in calls] == list(SIZES)
            if calls[index]["duration_ns"] is not None:
                pairs.append((calls[index]["duration_ns"] / 1e3, times[index]))
        assert len(pairs) >= len(report["records"]) / 2, f"{size}: {report['facts']['timed_every']}"
        ours, theirs = (statistics.median(each) for each in zip(*pairs, strict=True))
        assert inside(ours, theirs), (size, pairs)


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """The report of a single rank, with NCCL on CUDA."""
    return job("collectives")[0]


@pytest.fixture(scope="module")
def shared() -> list[dict[str, Any]]:
    """The reports of two ranks on one device, with gloo."""
    return job("collectives", world=2, backend="gloo")


def test_nccl_with_one_rank(alone):
    """Each all-reduce is seen with its size, and is as long as by the program's own events."""
    report = alone
    latencies_agree(report)
    if not devices.rehearsing():
        assert all(call["on_device"] for record in report["records"] for call in explicit(record))
        assert report["facts"]["device"] == "cuda:0"


def test_gloo_with_two_ranks_on_one_device(shared):
    """Gloo copies to the host by itself; latencies, waiting and the device are told all the same."""
    for report in shared:
        assert report["facts"]["faults"] == 0, report["facts"]
        assert all(len(explicit(record)) == len(SIZES) for record in report["records"])
        assert all(record["wait_ns"] is not None for record in report["records"])
        known = [call["duration_ns"] for record in report["records"] for call in explicit(record)]
        assert sum(duration is not None for duration in known) >= len(known) / 2
    if not devices.rehearsing():
        assert shared[0]["facts"]["device"] == "cuda:0"


def test_nccl_with_several_devices(several):
    """Between devices the latency is NCCL's own, the wait for the other ranks included."""
    for report in job("collectives", world=min(4, several)):
        latencies_agree(report)


def test_ddps_own_all_reduces_are_seen_and_block_the_host_with_gloo_alone(cuda, alone, shared):
    """With NCCL the device does them, and the host goes on; with gloo the end of backward waits for them."""
    for report, on_device in ((alone, True), (shared[0], False)):
        for record in report["records"]:
            own = [call for call in record["collectives"] if call["op"] == "all_reduce" and call["bytes"] not in SIZES]
            assert own
            timed = [call for call in own if call["duration_ns"] is not None]
            assert all(call["on_device"] == on_device for call in timed)
