"""A rank keeps the budget by itself from its first half second on, until somebody tells it how many steps to record."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddptop.agent.rank.records.own_choice import MOST_STEPS, OwnChoice
from ddptop.agent.wire import Step

MS = 1_000_000


def rank(recorded_ns: int | None = 60_000, counted_ns: int | None = None) -> Any:
    """Return as much of a rank's stamps as the choice looks at."""
    return SimpleNamespace(every=1, cost=SimpleNamespace(recorded_ns=recorded_ns, counted_ns=counted_ns))


def steps(count: int, ms: float) -> list[Step]:
    return [Step(number, number, 0, round(ms * MS), 0, 0, 0, 0, 0, 0) for number in range(1, count + 1)]


@pytest.mark.parametrize(("ms", "fewest", "most"), [(1.0, 8, 64), (3.0, 2, 8), (20.0, 1, 1)])
def test_after_half_a_second_the_budget_is_kept(ms: float, fewest: int, most: int) -> None:
    """Not before, and by what a usual step takes: the first ones, which are far longer, change nothing."""
    stamps = rank()
    choice = OwnChoice(stamps)
    choice.look(steps(3, 150.0), 50_000)
    choice.look(steps(40, ms), 50_000)
    assert stamps.every == 1
    assert not choice.is_over
    choice.look(steps(60, ms), 50_000)
    assert fewest <= stamps.every <= most
    assert choice.is_over


def test_nothing_is_chosen_where_the_cost_is_not_known() -> None:
    """Neither that of the hooks nor that of a record is guessed, and what is remembered meanwhile is bounded."""
    for stamps, record_ns in ((rank(None), 50_000), (rank(), None)):
        choice = OwnChoice(stamps)
        for _ in range(10):
            choice.look(steps(1000, 1.0), record_ns)
        assert (stamps.every, choice.is_over) == (1, False)
        assert len(choice._walls) == MOST_STEPS


def test_who_was_told_a_number_chooses_none() -> None:
    """Whatever the steps take."""
    stamps = rank()
    choice = OwnChoice(stamps)
    stamps.every, choice.is_over = 2, True
    choice.look(steps(1000, 1.0), 50_000)
    assert stamps.every == 2


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
while not session.own_choice.is_over and time.monotonic() - began < 20 or told and time.monotonic() - began < 2:
    step()
recorded = session.stamps._seq
for _ in range(640):
    step()
print(session.stamps.every, session.stamps._seq - recorded)
"""


def run(folder: Path, *arguments: str) -> list[int]:
    """Run the script as a rank that starts no observer: return one step in how many it records, and records of 640."""
    (folder / "short.py").write_text(SCRIPT)
    rank = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "ddptop.agent", "short.py", *arguments],
        capture_output=True, text=True, cwd=folder, env=os.environ | rank, check=True,
    )  # fmt: skip
    return [int(word) for word in done.stdout.split()]


def test_a_script_of_short_steps_is_not_recorded_whole(tmp_path: Path) -> None:
    """A real one, of which nobody but the rank itself can have said so."""
    every, records = run(tmp_path)
    assert every > 1
    assert records <= 640 / every + 2


def test_an_order_before_its_own_choice_holds(tmp_path: Path) -> None:
    """After two seconds of steps as well."""
    every, records = run(tmp_path, "2")
    assert every == 2
    assert 319 <= records <= 321
