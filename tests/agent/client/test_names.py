"""A run that is watched while its name, or its number of ranks, becomes that of another."""

from __future__ import annotations

import os

import pytest
from msgspec.structs import replace
from support.values.watches import watched

from ddptop.agent.client.watch import Watch
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run, RunDir
from ddptop.agent.wire.vocabulary.refusals import Refused


@pytest.fixture(autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of runs with none in it."""
    path = tmp_path_factory.mktemp("r")
    path.chmod(0o700)
    monkeypatch.setenv(rundir.BASE_VARIABLE, str(path))


def ended(name: str, state: str = "finished", run_id: str = "") -> RunDir:
    """Write down a run that has ended."""
    run = Run(name, run_id or name, "toy", (), 2, "gloo", "cpu", 10**9, True, state=state, exit_code=0)
    return rundir.create(replace(run, ended_at_ns=6 * 10**9))


def looked_at(watch: Watch, now: list[float]) -> Watch:
    """Let the time pass until the record is read again, and read it."""
    now[0] += 1
    watch.poll()
    return watch


def test_an_onlooker_follows_a_job_that_goes_on_with_another_number_of_ranks() -> None:
    """As an elastic launcher starts it again: nobody attaches anew; one that is gone by then stays as it was."""
    directory = rundir.create(Run("elastic", "one", "x.py", (), 2, "gloo", "cpu", 1_000, False, state="running"))
    now = [0.0]
    with watched(directory, onlooker=True, clock=lambda: now[0]) as watch:
        assert watch.frame().world == 2
        for world in (4, 1):
            directory.update(world=world)
            looked_at(watch, now)
            frame = looked_at(watch, now).frame()
            assert (frame.world, len(frame.ranks)) == (world, world)
        directory.update(world=3)
        looked_at(watch, now)
        rundir.set_aside(directory, "away")
        assert looked_at(watch, now).frame().world == 1


def test_another_run_is_shown_or_the_one_stays() -> None:
    """`open` changes the frame at once; a name that there is not is refused, and the frame stays."""
    ended("two", "failed")
    with watched(ended("one")) as watch:
        watch.open("two")
        assert (watch.frame().run, watch.frame().state) == ("two", "failed")
        with pytest.raises(Refused, match="no such run"):
            watch.open("three")
        watch.poll()
        assert watch.frame().run == "two"


def test_a_run_that_takes_the_name_of_the_one_shown_is_not_touched() -> None:
    """The last frame of the one that is shown stays, and every action on it is refused, in words."""
    with watched(ended("same", "failed", "first")) as watch:
        watch.poll()
        ended("same", "killed", "second")
        watch.poll()
        assert watch.frame().state == "failed"
        control = watch.control
        for act in (
            control.pause, control.resume, control.freeze, control.checkpoint, control.processes,
            lambda: control.stop(checkpoint=True), lambda: control.restart(resume=False), lambda: control.victims(None),
            lambda: control.step(1), lambda: control.kill(0.0, None, print), lambda: control.signal(15, None),
        ):  # fmt: skip
            with pytest.raises(Refused, match="another run has its name"):
                act()
        watch.open("same")
        assert watch.frame().state == "killed"


def test_who_follows_a_run_whose_name_was_taken_comes_to_an_end() -> None:
    """What became of it stood in its record: it is lost, and the line says where the name leads now."""
    directory = ended("same", "running", "first")
    run = directory.update(ended_at_ns=None, exit_code=None, observer=rundir.identify(os.getpid()))
    with watched(directory) as watch:
        watch.poll()
        assert watch.frame().state == "running"
        control = watch.control
        watch.open("same")
        assert watch.control is control, "it is shown already"
        directory.update(state="failed", observer=None)
        rundir.remove(directory)
        rundir.create(replace(run, run_id="second", state="failed", observer=None))
        watch.poll()
        frame = watch.frame()
        assert (frame.state, frame.cause) == ("lost", "another run has its name: `ddptop attach same` shows that one")
        watch.open("same")
        assert watch.frame().state == "failed"


def test_an_action_is_asked_for_by_its_name() -> None:
    """One that there is not is refused with those that there are."""
    with watched(ended("over")) as watch:
        for refused, words in (("pause", "is over"), ("close", "close is no action; there are pause, step, ")):
            with pytest.raises(Refused, match=words):
                watch.ask(refused)
