"""The ways in which people train on a GPU: under the agent each gives the same losses, and steps with sane phases."""

from __future__ import annotations

from typing import Any

import pytest
from support.gpu import devices
from support.gpu.jobs import job

from ddptop.agent.wire import PHASES

STEPS = 6
"""Of each technique in `programs/techniques.py`."""
ALWAYS = ("plain", "scaler", "bf16", "compiled", "checkpointing", "fsdp2")
ON_CUDA = ("graphs", "whole_graph")


@pytest.fixture(scope="module")
def both() -> tuple[dict[str, Any], dict[str, Any]]:
    """The reports of the same program without and with the agent."""
    return job("techniques", agent=False)[0], job("techniques")[0]


@pytest.mark.parametrize("technique", [*ALWAYS, *ON_CUDA])
def test_a_technique_trains_the_same_under_the_agent(both, technique):
    """Its losses are equal bit by bit, and each of its steps is a record with phases that add up to its time."""
    if technique in ON_CUDA and devices.rehearsing():
        pytest.skip(devices.NONE)
    without, with_agent = (each["techniques"][technique] for each in both)
    assert without.get("problem") == with_agent.get("problem") is None
    assert without["losses"] == with_agent["losses"]
    records = with_agent["records"]
    assert len(records) == STEPS
    for record in records:
        spent = [record[f"{phase}_ns"] or 0 for phase in PHASES]
        assert sum(spent) == record["wall_ns"]
        assert record["backward_ns"] > 0 or technique == "whole_graph"
        assert record["optimizer_ns"] > 0


def test_device_times_are_known_but_where_a_graph_is_captured(cuda, both):
    """From the second step of a technique on, the device's phases add up to about the time between two boundaries."""
    for technique, told in both[1]["techniques"].items():
        for record in told["records"][1:]:
            assert record["device_ns"] is not None, technique
            # The losses are read at once, so that host and device end each step together.
            assert sum(record["device_ns"]) <= 1.2 * record["wall_ns"] + 1e6, technique


def test_the_losses_of_a_scaler_are_the_scripts_own(both):
    """Unscaled, and the one that is not finite told as what it is: the step with it was skipped and counts."""
    told = both[1]["techniques"]["scaler"]
    for number, (record, loss) in enumerate(zip(told["records"], told["losses"], strict=True)):
        assert record["loss"] == (pytest.approx(loss, rel=1e-3) if number != 2 else float("inf"))


def test_the_agent_itself_did_not_fail(both):
    """No hook has raised in any of them."""
    assert (both[1]["facts"]["faults"], both[1]["facts"]["fault"]) == (0, None)
