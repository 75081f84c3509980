"""The dashboard without a run: `ddptop` alone, and a run whose record goes away while it is shown."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.screens.dashboards import seen, until
from support.screens.fleets import FleetSource, StillFleet
from support.screens.frames import NOW, frame
from support.values.watches import watched

from ddptop.agent.client.frame import Frame
from ddptop.agent.run import rundir
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.cli import main, view
from ddptop.tui.cli.verbs import options
from ddptop.tui.link.source import Home, Refused
from ddptop.tui.screens.dialogs.launch import LaunchDialog
from ddptop.tui.screens.run import RunScreen, RunsScreen
from ddptop.tui.views.screen.keybar import KeyBar


class HomeOf(FleetSource):
    """Shows no run of a fleet until one is opened."""

    def __init__(self, fleet: StillFleet) -> None:
        super().__init__(fleet, next(iter(fleet.frames), ""))
        self.current = Home(lambda _: self).frame()


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def at_home(fleet: StillFleet) -> DdptopApp:
    """Return a dashboard that shows nothing yet."""
    return DdptopApp(HomeOf(fleet), clock=lambda: NOW, fleet=fleet)


@pytest.mark.parametrize("size", [(20, 5), (80, 24), (200, 50)])
async def test_without_a_run_it_says_what_to_do(size: tuple[int, int]) -> None:
    """No key fails where nothing is there to act on; launching the first run shows it."""
    fleet = StillFleet((frame(),))
    source = HomeOf(fleet)
    fleet.frames.clear()
    async with DdptopApp(source, clock=lambda: NOW, fleet=fleet).run_test(size=size) as pilot:
        app = pilot.app
        await until(pilot, lambda: size[0] < 80 or "No run yet" in seen(app), "the invitation")
        await pilot.press("enter", "space", "k", "x", "R", "down", "end", "tab", "1", "escape", "r", "g", "v")
        assert isinstance(app.screen, RunsScreen)
        assert source.asked == []
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, LaunchDialog), "the dialog")
        await until(pilot, lambda: app.screen._asking is None, "the options")  # type: ignore[attr-defined]
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen), "the run")
        assert run_of(app.screen) == "started-0001"


def run_of(screen: object) -> str:
    """Return the run that a screen shows."""
    assert isinstance(screen, RunScreen)
    return screen.frame.run


async def test_the_keys_of_the_list_are_told_as_soon_as_there_are_runs() -> None:
    """With a list alone, first how a run is shown; without waiting for another key."""
    async with at_home(StillFleet()).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: isinstance(pilot.app.screen, RunsScreen), "the list")
        bar = pilot.app.screen.query_one(KeyBar)
        await until(pilot, lambda: bar.text.strip().startswith("⏎ Show"), "the way to a run comes first")
        assert "Kill" in bar.text


async def test_any_run_can_be_opened_from_the_list() -> None:
    """Enter shows the marked run; the list is then a key away, and escape returns from it."""
    fleet = StillFleet()
    async with at_home(fleet).run_test(size=(100, 30)) as pilot:
        app = pilot.app
        await until(pilot, lambda: "conv-9c02" in seen(app), "the list")
        await pilot.press("down", "enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen), "the run")
        assert run_of(app.screen) == "simplenet-01"
        await pilot.press("r")
        assert isinstance(app.screen, RunsScreen)
        await pilot.press("escape")
        assert isinstance(app.screen, RunScreen)


@pytest.mark.parametrize("terminal", [True, False])
def test_alone_it_lists_the_runs_on_a_terminal_alone(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ddptop` opens the list where somebody can look at it, and prints its help where nobody can."""
    shown: list[object] = []
    monkeypatch.setattr(sys, "argv", ["ddptop"])
    monkeypatch.setattr(options, "on_terminal", lambda _: terminal)

    def show(run: object, _: object) -> int:
        shown.append(run)
        return 0

    monkeypatch.setattr(view, "show_dashboard", show)
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 0
    assert shown == ([None] if terminal else [])
    assert ("usage: ddptop" in capsys.readouterr().out) is not terminal


def test_a_record_that_is_removed_is_a_refusal() -> None:
    """Whatever is asked of a run whose directory is gone is refused, in words; the frame stays."""
    directory = rundir.create(rundir.Run("gone-1", "gone", "toy.py", (), 1, "gloo", "cpu", 10**9, True))
    link = watched(directory)
    try:
        shutil.rmtree(directory.path)
        link.poll()
        control = link.control
        asked: list[Callable[[], Any]] = [
            lambda: control.victims(None), control.processes, lambda: control.kill(0.0, None, lambda _: None),
            lambda: control.signal(15, None), control.pause, control.resume, lambda: control.step(1),
            control.checkpoint, lambda: control.stop(checkpoint=False), control.freeze,
            lambda: control.restart(resume=False),
        ]  # fmt: skip
        for ask in asked:
            with pytest.raises(Refused, match=r"gone-1|no rank"):
                ask()
        current: Frame = link.frame()
        assert current.run == "gone-1"
    finally:
        link.close()
