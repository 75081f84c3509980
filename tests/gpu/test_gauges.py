"""Memory and load of a device by NVML, compared with what nvidia-smi says, however the device was chosen."""

from __future__ import annotations

import os
import subprocess

import pytest
from support.gpu.jobs import job

MIB = 1 << 20


def listed() -> dict[str, str]:
    """Return what nvidia-smi says of the last device that these tests may use."""
    names = ("index", "uuid", "memory.total", "mig.mode.current")
    told = subprocess.run(
        ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return dict(zip(names, (each.strip() for each in told[-1].split(",")), strict=True))


@pytest.mark.parametrize("by", ["index", "uuid"])
def test_memory_and_load_of_the_chosen_device(cuda, by):
    """The total is the device's, the rank's own part at least what torch has reserved, and the load is not zero."""
    told = listed()
    if "Enabled" in told["mig.mode.current"] or "CUDA_VISIBLE_DEVICES" in os.environ:
        pytest.skip("the device is a part of one (MIG), or was chosen before")
    (report,) = job("gauges", CUDA_VISIBLE_DEVICES=told[by])
    seen = report["seen"]
    assert (seen["faults"], seen["device"]) == (0, "cuda:0")
    assert report["reserved"] <= seen["memory_bytes"] <= report["reserved"] + 4096 * MIB
    # CUDA keeps some of the memory to itself.
    assert 0.9 * float(told["memory.total"]) * MIB <= seen["memory_total_bytes"] <= float(told["memory.total"]) * MIB
    loads = [load for load in report["loads"] if load is not None]
    assert loads
    assert max(loads) > 20


def test_without_visible_devices_the_rank_is_on_the_cpu():
    """`CUDA_VISIBLE_DEVICES` that is empty hides every device: memory is that of the process, no load is told."""
    (report,) = job("gauges", device="cpu", CUDA_VISIBLE_DEVICES="")
    seen = report["seen"]
    assert (seen["faults"], seen["device"], seen["device_percent"]) == (0, "cpu", None)
    assert seen["memory_bytes"] > report["taken"]


def test_of_a_part_of_a_device_the_load_is_not_known(cuda):
    """Under MIG the memory is that of the part; NVML tells no load of it, and none is made up."""
    if "Enabled" not in listed()["mig.mode.current"]:
        pytest.skip("the device is not divided (MIG)")
    (report,) = job("gauges")
    assert report["seen"]["device_percent"] is None
    assert report["seen"]["memory_total_bytes"] < 0.9 * float(listed()["memory.total"]) * MIB
