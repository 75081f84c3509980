"""The agent neither waits for the device nor orders its streams, and the numbers of the training are the same bits."""

from __future__ import annotations

from typing import Any

import pytest
from support.gpu.jobs import job
from support.gpu.trace import ORDERS, WAITS, Trace, added, read

STEPS = 10
"""Of `programs/order.py`, in the trace."""
WORKSPACE = ":4096:8"
"""With it cuBLAS gives the same bits in every run."""
OURS = ("memcpy dtoh", "norm", "reduce", "abs", "copy")
"""Parts of the names of what the agent gives to the device: a loss or a sample of gradients on its way to the host."""
MOST_CALLBACKS = 4
"""Collectives of a step, each of which has one."""
MOST_WORKS = 12
"""Works of ours in a step: the copy of the loss, and for each of DDP's buckets a norm, its parts and a copy."""


@pytest.fixture(scope="module")
def both() -> tuple[dict[str, Any], dict[str, Any]]:
    """The reports of the same program without and with the agent."""
    return (
        job("order", agent=False, CUBLAS_WORKSPACE_CONFIG=WORKSPACE)[0],
        job("order", CUBLAS_WORKSPACE_CONFIG=WORKSPACE)[0],
    )


@pytest.fixture(scope="module")
def traces(both: tuple[dict[str, Any], dict[str, Any]]) -> tuple[Trace, Trace]:
    """Their traces."""
    without, with_agent = (read(each["trace"], "step") for each in both)
    return without, with_agent


def test_numbers_are_the_same_bits(both):
    """Every loss and the parameters are equal, not close."""
    without, with_agent = both
    assert with_agent["facts"]["faults"] == 0
    assert without["losses"] == with_agent["losses"]
    assert without["bits"] == with_agent["bits"]


def test_nothing_waits_more(cuda, traces):
    """The host synchronizes no more often than without the agent."""
    without, with_agent = traces
    for name in WAITS:
        assert with_agent.calls[name] <= without.calls[name], name


def test_only_streams_of_torchs_own_callbacks_wait_more(cuda, traces):
    """The callback of an NCCL call runs under a stream that waits for that call: one wait for each, and no kernel."""
    without, with_agent = traces
    for name in ORDERS:
        assert with_agent.calls[name] <= without.calls[name] + MOST_CALLBACKS * STEPS, name


def test_works_are_the_same_on_the_same_streams(cuda, traces):
    """Every stream has the kernels and copies of before in their order; ours are a few tiny ones among them."""
    # The numbers of streams may differ from process to process.
    without, with_agent = (sorted(trace.streams().values(), key=len, reverse=True) for trace in traces)
    assert len(with_agent) == len(without)
    ours: list[str] = []
    for number, (names, more_names) in enumerate(zip(without, with_agent, strict=True)):
        more = added(names, more_names)
        assert more is not None, f"stream {number} has another order"
        ours += more
    assert all(any(part in name.lower() for part in OURS) for name in ours), ours
    assert len(ours) <= MOST_WORKS * STEPS, ours


def test_the_works_of_the_agent_are_tiny(cuda, traces):
    """What the agent gives to the device takes it less than 1 % of the training's own time."""
    without, with_agent = (sum(work.end - work.begin for work in trace.works) for trace in traces)
    # The device's clock changes with its temperature: two runs of the same kernels differ by some percent.
    assert with_agent <= 1.05 * without + 20 * STEPS
