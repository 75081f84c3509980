"""The report on the dashboard: a dead run says how to get it, and it has a screen of its own."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest
from support.screens.dashboards import dashboard, footer_keys, seen, until
from support.screens.frames import StillSource, frame
from support.values.reports import REPORT

from ddptop.agent import wire
from ddptop.tui.screens.report import ReportScreen
from ddptop.tui.screens.run import RunScreen

pytestmark = pytest.mark.usefixtures("utc")


async def test_a_dead_run_stays_on_the_screen_and_its_report_is_a_key_away() -> None:
    """From its first line, folded to the screen; `escape` leads back."""
    source = StillSource(frame("failed", cause="rank 1: ValueError: x", exit_code=1))
    source.reported = REPORT
    async with dashboard(source).run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "o tells why" in seen(pilot.app), "the header names the key")
        assert "Report" in footer_keys(pilot.app)
        await pilot.press("o")
        await until(pilot, lambda: "out of memory on the host" in seen(pilot.app), "the report")
        assert isinstance(pilot.app.screen, ReportScreen)
        text = seen(pilot.app)
        assert re.search(r"cause +rank", text)
        assert "toy-1 failed, exit code 137" in text
        assert "--markdown" in text
        assert "scrolled back" not in text
        assert "Follow" not in footer_keys(pilot.app)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen), "the run")


@pytest.mark.parametrize("died", ["before", "meanwhile"])
@pytest.mark.parametrize("view", ["panels", "table"])
async def test_the_rank_of_which_the_run_died_is_the_chosen_one(view: str, died: str) -> None:
    """Its log is read next, not that of the first of its victims; a rank that the user has chosen stays chosen."""
    dead = frame("failed", cause="rank 2: ValueError: x", cause_rank=2, exit_code=1)
    source = StillSource(dead if died == "before" else frame("running"))
    async with dashboard(source).run_test(size=(120, 40)) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, RunScreen)
        screen.action_view(view)
        source.current = dead
        await until(pilot, lambda: screen.view.id == view and screen.view.chosen == screen.rank == 2, "the rank")
        await until(pilot, lambda: "log of rank 2" in seen(pilot.app), "its log")
        screen.choose(1)
        source.current = msgspec.structs.replace(dead, at=dead.at + 1)
        await until(pilot, lambda: screen.frame is source.current, "the next frame")
        assert screen.view.chosen == 1


@pytest.mark.parametrize("view", ["1", "2", "3", "4"])
async def test_the_key_that_the_header_names_shows_the_report_in_every_view(view: str) -> None:
    """No view has another use for it."""
    source = StillSource(frame("failed", cause="rank 1: ValueError: x", exit_code=1))
    source.reported = REPORT
    async with dashboard(source).run_test(size=(120, 40)) as pilot:
        await pilot.press(view)
        await until(pilot, lambda: "o tells why" in seen(pilot.app), "the header names the key")
        await pilot.press("o")
        await until(pilot, lambda: isinstance(pilot.app.screen, ReportScreen), "the report")


async def test_a_verbatim_line_longer_than_the_screen_is_shown_to_its_end() -> None:
    """Its rest stands below, with its spaces."""
    source = StillSource(frame("failed", cause="rank 1: ValueError: x", exit_code=1))
    source.reported = replace(REPORT, stack=("Traceback:", "x" * 100 + "  the end of it"))
    async with dashboard(source).run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "Report" in footer_keys(pilot.app), "the key")
        await pilot.press("o")
        await until(pilot, lambda: "  the end of it" in seen(pilot.app), "the end of the line")


async def test_a_long_event_goes_on_below_its_text_at_a_word() -> None:
    """The event of a diagnosis is a sentence."""
    source = StillSource(frame("failed", exit_code=1))
    event = wire.Event(0, "probe 0001: rank 2 computes 38 % slower than the others: its cores are shared")
    source.reported = replace(REPORT, events=(event,))
    async with dashboard(source).run_test(size=(80, 50)) as pilot:
        await until(pilot, lambda: "Report" in footer_keys(pilot.app), "the key")
        await pilot.press("o")
        await until(pilot, lambda: "probe 0001" in seen(pilot.app), "the event")
        first, second = re.findall(r".*(?:probe 0001|shared).*", seen(pilot.app))
    assert re.search(r" (its|cores|are)$", first.rstrip())
    assert second.index(second.split()[0]) == first.index("probe")


async def test_a_killed_run_has_its_report_too() -> None:
    """It tells whether the run hung before, and where."""
    source = StillSource(frame("killed", cause="killed by ada"))
    source.reported = REPORT
    async with dashboard(source).run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "Report" in footer_keys(pilot.app), "the key")
        await pilot.press("o")
        await until(pilot, lambda: "toy-1 failed" in seen(pilot.app), "the report")


async def test_an_open_report_tells_what_becomes_known_of_the_end() -> None:
    """Where it was opened at the first death, the rest of the group ends under it; a new start leaves it as it is."""
    source = StillSource(frame("running", cause="rank 1: ValueError: x"))
    source.reported = replace(REPORT, state="running", exit_code=None)
    async with dashboard(source).run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "Report" in footer_keys(pilot.app), "the key")
        await pilot.press("o")
        await until(pilot, lambda: "toy-1 is running" in seen(pilot.app), "the report")
        source.reported = REPORT
        source.current = frame("failed", cause="rank 1: ValueError: x", exit_code=137)
        await until(pilot, lambda: "toy-1 failed, exit code 137" in seen(pilot.app), "the report on the end")
        source.reported = replace(REPORT, state="running", exit_code=None)
        source.current = frame("running")
        await until(pilot, lambda: "running" in seen(pilot.app), "the run that was started again")
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        assert "toy-1 failed, exit code 137" in seen(pilot.app)


async def test_a_run_that_is_gone_has_no_report() -> None:
    """The reason stands there in its place."""
    source = StillSource(frame("failed", cause="rank 1: ValueError: x", exit_code=1))
    async with dashboard(source).run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "Report" in footer_keys(pilot.app), "the key")
        await pilot.press("o")
        await until(pilot, lambda: "no report here" in seen(pilot.app), "the reason")


async def test_a_run_that_lives_does_not_offer_it() -> None:
    """There is nothing to explain."""
    async with dashboard(StillSource(frame("running"))).run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "Pause" in footer_keys(pilot.app), "the keys")
        assert "Report" not in footer_keys(pilot.app)
        await pilot.press("o")
        assert isinstance(pilot.app.screen, RunScreen)
