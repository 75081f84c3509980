"""Which run a verb means, by what was typed."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.harness import WAITING
from support.screens.frames import frame

from ddptop.agent.client import runs
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import RunDir, RunDirError
from ddptop.tui.cli import view
from ddptop.tui.cli.verbs import control, options

Make = Callable[[str, str], RunDir]


@pytest.fixture
def make() -> Iterator[Make]:
    """Return what makes a run of a name, in a state."""
    made: list[Path] = []

    def create(name: str, state: str) -> RunDir:
        now = time.time_ns()
        ended = None if state == "running" else now
        run = rundir.Run(name, name, "toy.py", (), 2, "gloo", "cpu", now, True, state=state, ended_at_ns=ended)
        made.append(rundir.create(run).path)
        return RunDir(made[-1])

    yield create
    for path in made:
        shutil.rmtree(path)


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> list[RunDir]:
    """The runs that are alive, as far as the verbs can tell."""
    found: list[RunDir] = []
    monkeypatch.setattr(runs, "live", lambda: [runs.Run(directory) for directory in found])
    return found


@pytest.mark.parametrize(
    ("typed", "steps", "run", "count"),
    [("3", None, None, 3), (None, None, None, 1), ("choice", None, "choice", 1), ("choice", 5, "choice", 5)],
)
def test_a_number_alone_is_a_number_of_steps(typed: str | None, steps: int | None, run: str | None, count: int) -> None:
    """`step 3` makes three steps of the only live run."""
    asked = argparse.Namespace(run=typed, steps=steps)
    control._take_number_as_steps(asked)
    assert (asked.run, asked.steps) == (run, count)


def test_a_run_that_is_called_like_a_number_is_meant_by_it(make: Make) -> None:
    """It could not be named otherwise."""
    make("4711", "finished")
    asked = argparse.Namespace(run="4711", steps=None)
    control._take_number_as_steps(asked)
    assert (asked.run, asked.steps) == ("4711", 1)


def test_of_several_runs_the_live_one_is_looked_at(
    make: Make, live: list[RunDir], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told which it is; a verb that acts asks for more of the name, and tells which is alive."""
    make("choice-a1", "finished")
    live.append(make("choice-b2", "running"))
    assert options.chosen("choice", looks=True).name == "choice-b2"
    assert capsys.readouterr().err == "ddptop: 'choice' could be 2 runs; this is the live one, choice-b2\n"
    with pytest.raises(RunDirError, match=r"could be choice-a1, choice-b2 \(alive\); give more of the name"):
        options.chosen("choice")


def test_a_kill_that_comes_too_late_names_the_restart(make: Make, live: list[RunDir]) -> None:
    """Of the same name with a higher number; other runs are none."""
    old = make("choice-c3", "killed")
    live.append(make("choice-d4.2", "running"))
    assert control._restart_of(runs.Run(old)) == ""
    live.append(make("choice-c3.2", "running"))
    assert control._restart_of(runs.Run(old)) == "; its restart choice-c3.2 is running"
    assert control._restart_of(runs.Run(live[-1])) == ""


def test_who_leaves_a_run_that_is_stopping_is_told_so() -> None:
    """The stop may be under way, and the ranks not at that step yet; after any other action it goes on."""
    running = replace(frame(), run="choice-e5")
    for action in ("", "pause by root (shell, pts/1)", "step 3 by root (shell, pts/1)"):
        assert view.farewell(replace(running, action=action))[0].startswith("choice-e5 goes on.")
    said = view.farewell(replace(running, action="stop by root (shell, pts/1)"))
    assert said == ["choice-e5 is stopping; it ends at its next step", "its logs:      ddptop logs choice-e5"]


def test_who_leaves_a_dead_run_is_told_of_its_report() -> None:
    """Of one that has finished, or was stopped, there is nothing to explain: its logs are named."""
    for state, verb in (("failed", "report"), ("lost", "report"), ("killed", "report"), ("finished", "logs")):
        assert view.farewell(replace(frame(), run="toy", state=state))[1].endswith(f"ddptop {verb} toy")


@pytest.mark.parametrize("ours", [True, False])
def test_a_process_is_taken_for_the_run_that_it_belongs_to(make: Make, *, ours: bool) -> None:
    """By its pid; one that belongs to no training is refused."""
    run = make("toy-1a2b", "running")
    environment = {**os.environ, rundir.MARKER: run.read().run_id if ours else "other"}
    with subprocess.Popen(WAITING, env=environment) as process:
        try:
            if ours:
                assert options.chosen(str(process.pid), looks=True).name == "toy-1a2b"
            else:
                with pytest.raises(RunDirError, match=r"is of no training"):
                    options.chosen(str(process.pid), looks=True)
        finally:
            process.kill()
    with pytest.raises(RunDirError, match="no such run, and no such process"):
        options.chosen(str(process.pid), looks=True)
