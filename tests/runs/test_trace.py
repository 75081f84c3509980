"""The profiler's trace as the tests on a GPU read it: a made-up one, since its parts from a device need a device."""

from __future__ import annotations

from typing import Any

import pytest
from support.gpu.trace import added, inside, read


def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


def launched(name: str, at: float, begin: float, dur: float, stream: int = 7, number: int = 0) -> list[dict[str, Any]]:
    """Return the host's call and the device's work that came of it."""
    number = number or round(at)
    call = event("cuda_runtime", "cudaLaunchKernel", at, 2, correlation=number)
    return [call, event("kernel", name, begin, dur, correlation=number, stream=stream)]


DOCUMENT = {
    "traceEvents": [
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        *launched("earlier", 50, 60, 5),
        event("user_annotation", "## step", 100, 100),
        event("user_annotation", "## forward", 110, 30),
        event("user_annotation", "Optimizer.step#SGD.step", 150, 40),
        event("user_annotation", "nccl:all_reduce", 150, 1),
        event("cpu_op", "## forward", 110, 30),
        *launched("matmul", 115, 120, 300),
        *launched("update", 160, 420, 20),
        *launched("nccl", 165, 170, 10, stream=20),
        event("cuda_runtime", "cudaStreamSynchronize", 180, 5, correlation=999),
        event("cuda_runtime", "cudaDeviceSynchronize", 500, 5, correlation=1000),
        *launched("later", 600, 610, 5),
    ]
}


def test_spans_and_work_are_told_apart():
    """What the program and the optimizer mark are spans; each work has its stream, and the call that gave it."""
    trace = read(DOCUMENT)
    assert [(span.name, span.begin, span.end) for span in trace.spans] == [
        ("step", 100, 200), ("forward", 110, 140), ("optimizer", 150, 190),
    ]  # fmt: skip
    assert [work.name for work in trace.works] == ["earlier", "matmul", "nccl", "update", "later"]
    assert [work.launched for work in trace.works] == [50, 115, 165, 160, 600]
    assert trace.streams() == {7: ["earlier", "matmul", "update", "later"], 20: ["nccl"]}
    assert trace.calls["cudaLaunchKernel"] == 5


def test_only_what_the_steps_have_done_is_compared():
    """The profiler's own calls before and after the steps are left out."""
    trace = read(DOCUMENT, "step")
    assert [work.name for work in trace.works] == ["matmul", "nccl", "update"]
    assert dict(trace.calls) == {"cudaLaunchKernel": 3, "cudaStreamSynchronize": 1}


@pytest.mark.parametrize(("at", "passes"), [(40, 40), (55, 65), (110, 110), (140, 420), (190, 440), (700, 700)])
def test_the_moment_at_which_the_device_passes_a_point(at, passes):
    """After all that was given to it before, and no earlier than the host says so."""
    assert read(DOCUMENT).moment(at) == passes


def test_what_was_added_to_a_sequence():
    """The works of before in their order; what came between; and nothing where the order is another one."""
    assert added(["a", "b", "b"], ["a", "x", "b", "y", "b"]) == ["x", "y"]
    assert added([], ["x"]) == ["x"]
    assert added(["a", "b"], ["b", "a"]) is None
    assert added(["a", "b"], ["a"]) is None


def test_the_tolerance():
    """5 % or 100 us, whichever is more."""
    assert inside(199, 100)
    assert not inside(201, 100)
    assert inside(10_499, 10_000)
    assert not inside(10_501, 10_000)
