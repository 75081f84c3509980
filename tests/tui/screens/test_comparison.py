"""Two runs on the dashboard: picked in the list, their curves over three axes, and what is said of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

import pytest
from support.screens.dashboards import dashboard, until
from support.screens.fleets import FRAMES, FleetSource, StillFleet
from support.screens.frames import NOW, StillSource, frame
from support.values.ended_runs import recorded

from ddptop.agent.client.comparison import compared, reading
from ddptop.agent.client.comparison.measured import Measured
from ddptop.agent.client.runs import Run
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.model import comparison
from ddptop.tui.screens.comparison import ComparisonScreen
from ddptop.tui.screens.report import ReportLines
from ddptop.tui.views.plot.plot import Plot
from ddptop.tui.views.runs import RunList


def made() -> tuple[Sequence[Measured], Sequence[str]]:
    """Read a usual run and a slower one of twice its steps."""
    longer = {(rank, "backward"): 12.0 for rank in (0, 1)}
    runs = [recorded("usual", 200, seed=1), recorded("slow", 400, seed=2, longer=longer)]
    read = [reading.read(Run(each), "test") for each in runs]
    return read, comparison.lines(compared.compare(*read), 76)


def is_another(plot: Plot, before: object) -> bool:
    """Say whether something else is drawn by now."""
    return plot.contents is not before


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_two_runs_are_drawn_over_steps_samples_and_seconds(size: tuple[int, int]) -> None:
    """With a line each, named after its run, and below it what is told of them; the plot's own keys work."""
    app = dashboard(StillSource(frame()))
    async with app.run_test(size=size) as pilot:
        screen = ComparisonScreen(("usual", "slow"), made)
        await app.push_screen(screen)
        await until(pilot, lambda: bool(screen.query(Plot)) and screen.query_one(Plot).contents is not None, "curves")
        plot = screen.query_one(Plot)
        for over, last in (("steps", 400), ("samples", 400 * 64), ("seconds", 45)):
            contents = plot.contents
            assert contents is not None
            assert [line.name for line in contents.lines] == ["usual", "slow"]
            assert not any(line.faded for line in contents.lines)
            assert contents.steps[-1] == pytest.approx(last, rel=0.03)
            assert screen.look is not None
            assert screen.look.over == over
            if name := os.environ.get("PICTURES"):
                app.save_screenshot(f"{name}-{size[0]}-{over}.svg")
            await pilot.press("t")
            await until(pilot, partial(is_another, plot, contents), "the next axis")
        lines = [line.text for line in screen.query_one(ReportLines).lines or ()]
        assert lines[0].startswith("slow is slower by 1")
        assert ": backward, all ranks; " in lines[0]
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is not screen, "the screen before")


async def test_a_run_that_cannot_be_read_is_one_line() -> None:
    """In the place of the comparison."""
    app = dashboard(StillSource(frame()))
    directory = recorded("usual", 20)
    directory.database.unlink()

    def make() -> tuple[Sequence[Measured], Sequence[str]]:
        return [reading.read(Run(directory), "test")], []

    async with app.run_test(size=(80, 24)) as pilot:
        screen = ComparisonScreen(("usual", "slow"), make)
        await app.push_screen(screen)
        listing = screen.query_one(ReportLines)
        await until(pilot, lambda: "nothing of its steps is recorded" in listing.problem, "the reason")


async def test_two_runs_are_picked_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stays marked until the second is picked; the same run again is let go."""
    fleet = StillFleet()
    app = DdptopApp(FleetSource(fleet, FRAMES[0].run), clock=lambda: NOW, fleet=fleet)
    compared_: list[tuple[str, str]] = []
    async with app.run_test(size=(120, 40)) as pilot:
        assert app.several is not None
        monkeypatch.setattr(app.several, "compare", lambda first, second: compared_.append((first, second)))
        await pilot.press("r")
        await until(pilot, lambda: [each for each in app.screen.query(RunList) if each.listing is not None], "the list")
        listed = app.screen.query_one(RunList)
        first, second = (line.run for line in listed.lines[:2])
        await pilot.press("home", "equals_sign", "equals_sign", "equals_sign", "down", "equals_sign")
        await until(pilot, lambda: bool(compared_), "both")
        assert compared_ == [(first, second)]
