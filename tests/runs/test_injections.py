"""Faults put into real runs of two ranks by `--inject`, and what is said of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from support.harness import DEADLINE_S, ddptop, status, write_script
from support.processes.scripts import TRAIN

from ddptop.agent.record import recording
from ddptop.agent.run import rundir


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script."""
    path = tmp_path_factory.mktemp("scripts")
    write_script(path, TRAIN)
    return path


@pytest.fixture(scope="module")
def faulty(folder: Path) -> subprocess.CompletedProcess[str]:
    """A run with three faults, the last of which ends it."""
    return ddptop(
        "launch", "--world", "2", "--name", "faulty", "--inject", "rank=1,phase=backward,ms=30,from=40",
        "--inject", "rank=0,nan,from=338", "--inject", "rank=0,crash,from=341", "train.py", "--", "500",
        cwd=folder, timeout=4 * DEADLINE_S,
    )  # fmt: skip


def test_a_slow_backward_is_named_though_the_all_reduce_hides_it(faulty):
    """Told once when found, labelled as put in on purpose, summed up, and in `status --json`; and a second fault."""
    assert "injected faults: rank 1: 30 ms more in backward" in faulty.stdout
    told = status("faulty")
    # The loss that is not a number comes first: from then on the training is worth nothing.
    assert told["verdict"]["kind"] == "health"
    # On a busy machine a verdict may end and begin again, or another rank be late for a while.
    recorded = recording.read_verdicts(rundir.find("faulty").database)
    verdicts = [each for each in recorded if (each.kind, each.rank) == ("slow_rank", 1)]
    named = [each for each in verdicts if each.phase == "backward"]
    assert named, recorded
    # What it costs the group is less than what was put in where the other rank waits for a core meanwhile.
    assert all((each.cost_ms or 0) > 0 and (each.since_step or 0) >= 35 for each in named)
    # It goes on to be judged after it was told, so that the milliseconds may be others.
    said = r"verdict: rank 1 holds the group back by \d+ ms a step \(\d+%\): backward pass, since step \d+"
    assert re.search(said, faulty.stdout)
    # The line of code is known some seconds later.
    assert all(re.fullmatch(said + "( · .+)?", f"verdict: {each.text}") for each in named)
    slow, *others = told["injected"].split("; ")
    assert slow == "rank 1: 30 ms more in backward in each step from step 40"
    assert others == ["rank 0: nan from step 338", "rank 0: crash from step 341"]
    assert faulty.stdout.count("verdict: rank 1 holds the group back") == len(verdicts)
    printed = [line.split() for line in rundir.find("faulty").rank_log(0).read_text().splitlines() if "loss " in line]
    assert [step for _, step, loss in printed if loss == "nan"] == ["338", "339", "340"]


def test_a_rank_that_dies_tells_why_once(faulty):
    """The first cause is named with its rank and that it was injected; its traceback, down to the script's own line,
    is shown once, though the other rank fails for want of it; the exit code is the run's.
    """
    assert faulty.returncode == 1
    assert "first cause: rank 0: RuntimeError: injected by ddptop --inject\n" in faulty.stdout
    assert faulty.stdout.count("Traceback") == faulty.stdout.count("loss.backward()") == 1
    told = status("faulty")
    assert (told["state"], told["exit_code"]) == ("failed", 1)
