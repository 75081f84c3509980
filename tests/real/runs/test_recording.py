"""Runs of two ranks in which only one step in eight is recorded."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.harness import DEADLINE_S, ddptop, status, until, write_script
from support.processes.ranks import observed
from support.processes.scripts import TRAIN

from ddptop.agent.run.switches.recording import VARIABLE


@pytest.fixture(scope="module")
def eighth(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The events of a run with a slow rank, and with a loss that is no number from a step that is not recorded."""
    script = write_script(tmp_path_factory.mktemp("scripts"), TRAIN)
    faults = "rank=1,phase=backward,ms=30,from=160;rank=0,nan,from=683"
    with observed("eighth", script, "700", env={VARIABLE: "8", "DDPTOP_INJECT": faults}) as (_, ranks):
        assert ranks.wait(4 * DEADLINE_S) == 0, ranks.said
    return ddptop("events", "eighth").stdout


def test_a_slow_rank_is_named_as_ever(eighth):
    """By rank and phase, from records of one step in eight; and `status` says so."""
    said = r"rank 1 holds the group back by [\d.]+ ms a step \(\d+%\): backward pass, since step [\d,]+"
    assert re.search(said, eighth), eighth
    told = status("eighth")
    assert told["recorded_every"] == 8
    assert "one step in 8 recorded" in ddptop("status", "eighth").stdout


def test_a_loss_that_is_no_number_is_told_with_its_step(eighth):
    """Although that step is only counted."""
    assert "loss is nan since step 683" in eighth
    assert status("eighth")["step"] == 700


NUMBERED = """
import os
import sys

import torch
from torch import distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for step in range(1, int(sys.argv[1]) + 1):
    loss = model(torch.zeros(1, 8)).sum() * 0 + step
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if sys.argv[2] == "at once":
    os._exit(0)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("ending", ["usual", "at once"])
def test_the_last_loss_is_that_of_the_last_step(tmp_path, ending):
    """A script whose loss is the number of the step, of which one in 64 is recorded; it ends as usual, or at once."""
    name = f"last-{ending.replace(' ', '-')}"
    with observed(name, write_script(tmp_path, NUMBERED), "203", ending, env={VARIABLE: "64"}) as (_, ranks):
        assert ranks.wait() == 0, ranks.said
    assert [(rank["step"], rank["loss"]) for rank in status(name)["ranks"]] == [(203, 203.0)] * 2


def test_each_single_step_of_a_paused_run_tells_its_own_loss(tmp_path):
    """That of the step at which it is held first, and of three single steps, most of which would not be recorded."""
    with observed("single", write_script(tmp_path, NUMBERED), "100000000", "usual", env={VARIABLE: "64"}):
        until(lambda: status("single")["step"], "the first steps")
        found = []
        for command in ("pause", "step", "step", "step"):
            assert ddptop(command, "single").returncode == 0
            told = until(_held_alike, "the record, which comes after the sign of life")
            found.append([told["step"], *(rank["loss"] for rank in told["ranks"])])
        first = found[0][0]
        assert found == [[number] * 3 for number in range(first, first + 4)]
        assert ddptop("kill", "single").returncode == 0


def _held_alike() -> Any:
    told = status("single")
    alike = {number for rank in told["ranks"] for number in (rank["step"], rank["loss"])} == {told["step"]}
    return told if alike else None
