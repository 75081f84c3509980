"""The fleet of a machine, from run directories without processes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.harness import until
from support.screens.frames import frame

from ddptop.agent.client.start.checks import variables
from ddptop.agent.client.start.request import Request, RequestError
from ddptop.agent.client.watch import Link
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run
from ddptop.tui.launch.launch import launch
from ddptop.tui.link import runs
from ddptop.tui.link.fleet import line_of
from ddptop.tui.link.runs import Runs
from ddptop.tui.link.source import Refused, frame_now


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
    made = Runs(lambda run: Link.of(run, "test"), "test")
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


@pytest.mark.parametrize(("poll_s", "most"), [(0.0, runs.MOST_POLLS), (2 * runs.BUDGET_S, 1)])
def test_a_look_is_bounded(folder: Path, poll_s: float, most: int) -> None:
    """However much is recorded of a run, a look polls it a few times, and once where polls are slow."""
    now = 0.0
    polled: Counter[str] = Counter()

    class NeverSettled(Link):
        settled = False

        def poll(self) -> None:
            nonlocal now
            now += poll_s
            polled[self.directory.name] += 1

    for name in ("one", "two"):
        ended(name, 1_000)
    fleet = Runs(lambda run: NeverSettled(run.directory, "test"), "test", clock=lambda: now)
    try:
        fleet.listing(None)
        assert polled == {"one": most, "two": most}
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
    link = Link(rundir.find("patient"), "test")
    try:
        assert frame_now(link).grace_s == 60.0
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


def test_an_onlooker_follows_a_job_that_goes_on_with_another_number_of_ranks(folder: Path) -> None:
    """As an elastic launcher starts it again: nobody attaches anew."""
    run = Run("elastic", "one", "x.py", (), 2, "gloo", "cpu", 1_000, False, state="running")
    directory = rundir.create(run)
    link = Link(directory, "test", onlooker=True)
    try:
        assert frame_now(link).world == 2
        for world in (4, 1):
            directory.update(world=world)

            def follows(world: int = world) -> bool:
                link.poll()
                return frame_now(link).world == world

            until(follows, f"{world} ranks")
            assert len(frame_now(link).ranks) == world
        directory.update(world=3)
        link._look()
        rundir.set_aside(directory, "away")
        for _ in range(3):
            # Gone before it could be opened anew.
            link.poll()
        assert frame_now(link).world == 1
    finally:
        link.close()


def test_a_link_shows_another_run_or_stays_where_it_is(folder: Path) -> None:
    """`open` changes the frame at once; a name that there is not is refused, and the frame stays."""
    ended("one", 1_000)
    ended("two", 2_000, "failed")
    link = Link(rundir.find("one"), "test")
    try:
        link.open("two")
        assert (frame_now(link).run, frame_now(link).state) == ("two", "failed")
        with pytest.raises(Refused, match="no such run"):
            link.open("three")
        link.poll()
        assert frame_now(link).run == "two"
    finally:
        link.close()


def test_a_run_that_takes_the_name_of_the_one_shown_is_not_touched(folder: Path) -> None:
    """The last frame of the one that is shown stays, and every action on it is refused, in words."""
    ended("same", 1_000, "failed", "first")
    link = Link(rundir.find("same"), "test")
    try:
        link.poll()
        ended("same", 2_000, "killed", "second")
        link._look_due = 0.0
        link.poll()
        assert frame_now(link).state == "failed"
        control = link.control
        for act in (
            control.pause, control.resume, control.freeze, control.checkpoint, control.processes,
            lambda: control.stop(checkpoint=True), lambda: control.restart(resume=False), lambda: control.victims(None),
            lambda: control.step(1), lambda: control.kill(0.0, None, print), lambda: control.signal(15, None),
        ):  # fmt: skip
            with pytest.raises(Refused, match="another run has its name"):
                act()
        link.open("same")
        assert frame_now(link).state == "killed"
    finally:
        link.close()


def test_who_follows_a_run_whose_name_was_taken_comes_to_an_end(folder: Path) -> None:
    """What became of it stood in its record: it is lost, and the line says where the name leads now."""
    run = ended("same", 1_000, "failed", "first")
    directory = rundir.find("same")
    directory.update(state="running", ended_at_ns=None, exit_code=None, observer=rundir.identify(os.getpid()))
    link = Link(directory, "test")
    try:
        link.poll()
        assert frame_now(link).state == "running"
        control = link.control
        link.open("same")
        assert link.control is control, "it is shown already"
        directory.update(state="failed", observer=None)
        rundir.remove(directory)
        rundir.create(msgspec.structs.replace(run, run_id="second"))
        link._look_due = 0.0
        link.poll()
        frame = frame_now(link)
        assert (frame.state, frame.cause) == ("lost", "another run has its name: `ddptop attach same` shows that one")
        link.open("same")
        assert frame_now(link).state == "failed"
    finally:
        link.close()


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
