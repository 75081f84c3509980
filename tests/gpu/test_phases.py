"""The phases of a step against torch.profiler: those of the host, and on the device's own time line."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from support.gpu import devices
from support.gpu.jobs import job
from support.gpu.trace import Span, Trace, inside, read

MOST_OUTSIDE = 0.1
"""Part of the steps that may be further off than 5 % or 100 us: another process may take the core in between."""


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What the first rank reports."""
    return job("phases")[0]


@pytest.fixture(scope="module")
def trace(told: dict[str, Any]) -> Trace:
    """The profiler's trace of the same steps."""
    return read(told["trace"])


def span_of(trace: Trace, step: Span, name: str) -> Span:
    """Return the marked span of a phase within a step."""
    return next(each for each in trace.named(name) if step.begin <= each.begin < step.end)


def agree(pairs: list[tuple[float, float]]) -> None:
    """Compare (ours, the profiler's), in us."""
    outside = [pair for pair in pairs if not inside(*pair)]
    assert len(outside) <= MOST_OUTSIDE * len(pairs), outside
    assert inside(statistics.median(ours for ours, _ in pairs), statistics.median(theirs for _, theirs in pairs)), pairs


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_phases_of_the_host(told, trace, phase):
    """The host's time in a phase is the profiler's, within 5 % or 100 us; the wait for buckets is one of backward."""
    pairs = []
    for record, step in zip(told["records"], trace.named("step"), strict=True):
        marked = span_of(trace, step, phase)
        ours = record[f"{phase}_ns"] + ((record["wait_ns"] or 0) if phase == "backward" else 0)
        pairs.append((ours / 1e3, marked.end - marked.begin))
    agree(pairs)


def test_copies_of_the_host(told, trace):
    """What the host spends in `.to(device)` is a phase of its own; without a device there is none."""
    if devices.rehearsing():
        assert all(record["copy_ns"] is None for record in told["records"])
        return
    pairs = []
    for record, step in zip(told["records"], trace.named("step"), strict=True):
        marked = span_of(trace, step, "copy")
        pairs.append((record["copy_ns"] / 1e3, marked.end - marked.begin))
    agree(pairs)


@pytest.mark.parametrize(
    ("phase", "index"), [("copy", 5), ("forward", 1), ("backward", 2), ("optimizer", 3)]
)  # the places of `wire.DEVICE_PHASES`
def test_phases_of_the_device(cuda, told, trace, phase, index):
    """The device's time in a phase, by the agent's events, is from the end of the work before it to that of its own."""
    order = ["copy", "forward", "backward", "optimizer"]
    pairs = []
    for record, step in zip(told["records"], trace.named("step"), strict=True):
        assert record["device_ns"] is not None
        marked = span_of(trace, step, phase)
        until = marked.end
        if phase == "forward":
            # It goes on until the backward pass begins, so that a loss outside of the model is a part of it.
            until = span_of(trace, step, order[order.index(phase) + 1]).begin
        pairs.append((record["device_ns"][index] / 1e3, trace.moment(until) - trace.moment(marked.begin)))
    agree(pairs)


def test_a_copy_is_as_long_as_the_devices_copy(cuda, told, trace):
    """From pinned memory, the copy's time on the device is that of the one memcpy in the profiler's trace."""
    steps = trace.named("step")
    pairs = []
    for record, step in list(zip(told["records"], steps, strict=True))[: len(steps) // 2]:
        marked = span_of(trace, step, "copy")
        copies = [work for work in trace.works if "HtoD" in work.name and marked.begin <= work.launched < marked.end]
        assert len(copies) == 1
        pairs.append((record["device_ns"][5] / 1e3, copies[0].end - copies[0].begin))
    agree(pairs)


def test_no_hook_has_failed(told):
    """The agent counted no error of its own."""
    assert (told["facts"]["faults"], told["facts"]["fault"]) == (0, None)
