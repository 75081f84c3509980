"""The fleet of a machine, from run directories without processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replace_in
from support.screens.dashboards import INK
from support.screens.frames import frame
from support.values.watches import watched

from ddptop.agent.client.sources import unprepared
from ddptop.agent.client.start.checks import variables
from ddptop.agent.client.start.request import Request, RequestError
from ddptop.agent.client.watch import Watch
from ddptop.agent.outside.groups import Group
from ddptop.agent.outside.recorded import run_of
from ddptop.agent.run import rundir
from ddptop.agent.run.identity import identify
from ddptop.agent.run.rundir import Run
from ddptop.tui.launch.launch import launch
from ddptop.tui.link import runs
from ddptop.tui.link.fleet import line_of
from ddptop.tui.link.runs import Runs
from ddptop.tui.link.source import Refused
from ddptop.tui.views.runs import _narrow


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs with none in it."""
    path = tmp_path_factory.mktemp("r")
    path.chmod(0o700)
    monkeypatch.setenv(rundir.BASE_VARIABLE, str(path))
    return path


@pytest.fixture
def fleet(folder: Path) -> Iterator[Runs]:
    """The fleet of that folder."""
    made = Runs(lambda run: Watch(run, "test"), "test")
    yield made
    made.close()


def ended(name: str, at: int, state: str = "finished", run_id: str = "", **more: Any) -> Run:
    """Write down a run that has ended."""
    run = Run(
        run=name, run_id=run_id or name, program="toy", arguments=(), world=2, backend="gloo", device="cpu",
        created_at_ns=at, launched=True, state=state, exit_code=0, ended_at_ns=at + 5_000_000_000, **more,
    )  # fmt: skip
    rundir.create(run)
    return run


def test_live_runs_come_first_and_ended_ones_stay(fleet: Runs) -> None:
    """The newest first of both; the one shown is not looked at again."""
    ended("old", 1_000)
    ended("newer", 2_000)
    ended("shown", 500, "lost")
    shown = replace(line_of(frame("running", run="shown")), step=7)
    listing = fleet.listing(shown)
    assert [line.run for line in listing.lines] == ["shown", "newer", "old"]
    assert listing.lines[0] == shown
    assert listing.lines[1].age_s == pytest.approx(5)
    assert listing.host.memory_total_bytes > listing.host.memory_bytes > 0


def test_a_group_that_nobody_prepared_is_a_line(folder: Path, fleet: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is listed as that without a directory, is found again by its name, and is one line once it was met."""
    process = identify(os.getpid())
    assert process is not None
    group = Group({0: process}, {0: 0}, 1, None, (), "train.py", ())
    monkeypatch.setattr(unprepared, "found", lambda: [group])
    (line,) = fleet.listing(None).lines
    assert (line.run, line.run_id, line.state, line.unmet) == (group.name, group.run_id, "running", True)
    assert "unprepared" in "".join(segment.text for row in _narrow(line, 80, INK) for segment in row)
    assert not (folder / group.name).exists()
    rundir.create(replace_in(run_of(group), state="finished", ended_at_ns=1))
    assert [(each.run, each.unmet) for each in fleet.listing(None).lines] == [(group.name, False)]


def test_a_look_is_bounded(folder: Path) -> None:
    """Where the first poll takes all the time that there is, the other runs are shown by their records until the next
    look.
    """
    now, polled = 0.0, list[str]()

    class Slow(Watch):
        def poll(self) -> None:
            nonlocal now
            now += 2 * runs.BUDGET_S
            polled.append(self.run.name)
            super().poll()

    ended("one", 1_000)
    ended("two", 2_000, "failed")
    fleet = Runs(lambda run: Slow(run, "test"), "test", clock=lambda: now)
    try:
        for count in (1, 2, 2):
            assert [(line.run, line.state) for line in fleet.listing(None).lines] == [
                ("two", "failed"), ("one", "finished")
            ]  # fmt: skip
            assert polled == ["two", "one"][:count]
    finally:
        fleet.close()


def test_an_ended_run_is_removed_and_no_other_of_its_name(fleet: Runs) -> None:
    """A live run is refused in one line, and so is a run whose name another one has taken."""
    ended("gone", 1)
    ended("taken", 2, run_id="newer")
    rundir.create(
        Run("live", "l", "p", (), 1, "gloo", "cpu", 3, True, state="running", observer=rundir.identify(os.getpid()))
    )
    lines = {line.run: line for line in fleet.listing(None).lines}
    assert fleet.remove(lines["gone"]).startswith("removed gone: ")
    with pytest.raises(Refused, match="live has not ended"):
        fleet.remove(lines["live"])
    with pytest.raises(Refused, match="another run has taken this name"):
        fleet.remove(replace(lines["taken"], run_id="older"))
    assert {run.name for run in rundir.runs()} == {"taken", "live"}
    assert {line.run for line in fleet.listing(None).lines} == {"taken", "live"}


def test_a_name_taken_again_is_another_run(fleet: Runs) -> None:
    """What was known of the ended run of that name is not told of its successor."""
    ended("same", 1_000, "failed", "first")
    assert [line.state for line in fleet.listing(None).lines] == ["failed"]
    ended("same", 2_000, "killed", "second")
    assert [line.state for line in fleet.listing(None).lines] == ["killed"]


def test_a_kill_from_the_dashboard_has_the_grace_period_of_the_run(fleet: Runs) -> None:
    """Of the run shown and of each in the list: what it was launched with."""
    ended("patient", 1_000, grace_s=60.0)
    link = watched(rundir.find("patient"))
    try:
        assert link.frame().grace_s == 60.0
    finally:
        link.close()
    assert [line.grace_s for line in fleet.listing(None).lines] == [60.0]


def test_a_run_that_takes_the_name_of_the_one_shown_has_its_own_line(fleet: Runs) -> None:
    """What is shown has ended, and is told of nobody else; the newer run is looked at."""
    ended("same", 1_000, "failed", "first")
    (shown,) = fleet.listing(None).lines
    ended("same", 2_000, "killed", "second")
    (line,) = fleet.listing(shown).lines
    assert (line.run_id, line.state) == ("second", "killed")


def test_a_run_that_gave_its_name_away_is_listed_by_its_new_one(fleet: Runs) -> None:
    """As the hosts of a training do with the one before."""
    ended("demo", 1_000, "failed", "first")
    fleet.listing(None)
    rundir.set_aside(rundir.find("demo"), "demo.2")
    ended("demo", 2_000, "killed", "second")
    shown = line_of(frame("failed", run="demo", run_id="first"))
    for listing in (fleet.listing(None), fleet.listing(shown)):
        assert [(line.run, line.run_id) for line in listing.lines] == [("demo", "second"), ("demo.2", "first")]


def test_what_acts_on_another_run_is_refused_by_name(fleet: Runs) -> None:
    """Nothing acts on a run that is gone; what acts on one that is there acts on no later one of that name."""
    ended("one", 1_000)
    control = fleet.control("one")
    assert "0 ranks" in control.victims(None)
    with pytest.raises(Refused, match="no such run"):
        fleet.control("gone")
    ended("one", 2_000, run_id="another")
    with pytest.raises(Refused, match="another run has its name"):
        control.victims(None)


@pytest.mark.parametrize("text", ["A", "1A=x", "=x", "A B=x", "DDPTOP_RUN_ID=x"])
def test_environment_that_makes_no_sense_is_refused(folder: Path, text: str) -> None:
    """Before anything is started, in one line that says what to do."""
    with pytest.raises(ValueError, match="environment"):
        variables([text])
    with pytest.raises(RequestError, match="environment") as refusal:
        launch(Request("toy", world=1, environment=(text,)))
    assert "\n" not in str(refusal.value)
    assert not rundir.runs()
