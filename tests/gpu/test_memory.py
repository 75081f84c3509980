"""A look at the memory of a rank whose tensors are on a device, and an event when the device is full."""

from __future__ import annotations

from support.gpu import devices
from support.gpu.jobs import PROGRAMS, job

MIB = 1 << 20


def test_tensors_that_are_kept_on_the_device_are_named():
    """By the line that made them and the variable that holds them."""
    lines = (PROGRAMS / "census.py").read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if "kept.append(" in line)
    (report,) = job("census")
    kind, place = report["kind"], {"cuda": "cuda:0", "cpu": "cpu"}[str(devices.device())]
    assert (kind["dtype"], kind["shape"], kind["device"]) == ("float32", [256, 1024], place)
    assert (kind["grown"], kind["grown_bytes"]) == (3, 3 * MIB)
    assert (kind["made"], kind["holder"]) == (f"census.py:{number}", "list `kept` of main()")


def test_the_allocator_says_as_much_and_a_full_device_is_an_event(cuda):
    """Its history is a file; where it is full the script gets the error that torch raises anyway."""
    (report,) = job("census")
    (device,) = report["devices"]
    assert device["device"] == "cuda:0"
    assert 3 * MIB <= device["allocated_grown"] < 4 * MIB
    assert device["reserved"] >= device["allocated"] >= 3 * MIB
    assert (device["problem"], device["snapshot"].endswith("rank-0.pickle")) == ("", True)
    full, raised = report["events"]
    assert full.startswith("out of memory on cuda:0: 4.00 TiB more were wanted, ")
    assert "; tensors have " in full
    assert raised == "torch raises its own error"
