"""A real script chooses how many of its steps are recorded, by the time that these take on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import time
import torch
from ddptop import agent

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = agent._listener

def step():
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()

told = len(sys.argv) > 1 and int(sys.argv[1])
if told:
    assert session.record_every(told) is None
began = time.monotonic()
while not session.own_rate.is_over and time.monotonic() - began < 20 or told and time.monotonic() - began < 2:
    step()
recorded = session.stamps._seq
for _ in range(640):
    step()
recorded = session.stamps._seq - recorded
print(session.stamps.every, recorded)
if not told:
    # Until the agent's thread knows what is usual.
    began = time.monotonic()
    while session.own_rate._usual_ns is None and time.monotonic() - began < 20:
        step()
    usual, began = session.stamps.every, time.monotonic()
    while session.stamps.every >= usual and time.monotonic() - began < 20:
        time.sleep(0.3 / usual)
        step()
    print(usual, session.stamps.every)
"""


def run(folder: Path, *arguments: str) -> list[int]:
    """Run the script as a rank that starts no observer, and return what it prints.

    That is: one step in how many it records, and records of 640 steps.  Where it was told no number, also how many it
    records once its steps are long, before and after it has seen that.
    """
    (folder / "short.py").write_text(SCRIPT)
    rank = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "ddptop.agent", "short.py", *arguments],
        capture_output=True, text=True, cwd=folder, env=os.environ | rank, check=True,
    )  # fmt: skip
    return [int(word) for word in done.stdout.split()]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """Return what a rank that nobody tells anything does."""
    return run(tmp_path_factory.mktemp("alone"))


def test_a_script_of_short_steps_is_not_recorded_whole(alone: list[int]) -> None:
    """A real one, of which nobody but the rank itself can have said so."""
    every, records, *_ = alone
    assert every > 1
    assert records <= 640 / every + 2


def test_a_script_whose_steps_become_long_is_recorded_more_often(alone: list[int]) -> None:
    """The same one: 0.3 s from record to record have become half of that at most."""
    usual, after = alone[2:]
    assert after <= usual / 2


def test_an_order_before_its_own_choice_holds(tmp_path: Path) -> None:
    """After two seconds of steps as well."""
    every, records = run(tmp_path, "2")
    assert every == 2
    assert 319 <= records <= 321
