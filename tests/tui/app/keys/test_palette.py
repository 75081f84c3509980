"""The palette does what the keys do, and finds a rank."""

from __future__ import annotations

from typing import Any

import pytest
from support.screens.dashboards import dashboard, until
from support.screens.frames import NOW, StillSource, frame
from textual import events
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import OptionList

from ddptop.agent.client.host.settings import Settings
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.app.keys import keymap
from ddptop.tui.screens.lists import LogScreen
from ddptop.tui.screens.rank import RankScreen
from ddptop.tui.screens.run import RunScreen


async def offered(pilot: Pilot[None], query: str = "") -> list[str]:
    """Open the palette, type, and return what it offers."""
    app = pilot.app
    await pilot.press("ctrl+p")
    await until(pilot, lambda: isinstance(app.screen, CommandPalette), "the palette")
    await pilot.press(*("space" if char == " " else char for char in query))
    options = app.screen.query_one(OptionList)

    def texts() -> list[str]:
        prompts = (options.get_option_at_index(index).prompt for index in range(options.option_count))
        return [str(prompt).splitlines()[0] for prompt in prompts]

    await until(pilot, lambda: any(query in text.lower() for text in texts()), "what it offers")
    # The log screen's own worker reads as long as the screen is there.
    for each in [each for each in app.workers if app.screen in each.node.ancestors_with_self]:
        await each.wait()
    return texts()


def palettes(app: DdptopApp) -> list[Screen[Any]]:
    """Return the palettes that are open."""
    return [screen for screen in app.screen_stack if isinstance(screen, CommandPalette)]


async def test_it_offers_every_action_of_the_screen() -> None:
    """Each binding that works here and now is there under its own words, with its key as the user set it."""
    app = DdptopApp(StillSource(frame()), clock=lambda: NOW, settings=Settings(keys={"run.kill": "K"}))
    async with app.run_test(size=(120, 60)) as pilot:
        for key in ("", "enter", "g"):
            await pilot.press(*([key] if key else []))
            active = {each.binding.id: each for each in app.screen.active_bindings.values() if each.enabled}
            texts = await offered(pilot)
            for _, action in keymap.actions(DdptopApp):
                there = any(text.startswith(f"{action.meaning}  (") for text in texts)
                assert there or action.id not in active or action.id == "app.palette", action
            assert "Kill the run or the chosen rank: asks first  (K)" in texts
            await pilot.press("escape")


async def test_it_jumps_to_a_rank_and_does_an_action() -> None:
    """A number and Enter chooses that rank, on whatever screen; words and Enter do what the key does."""
    source = StillSource(frame(world=24))
    async with dashboard(source).run_test(size=(120, 40)) as pilot:
        app = pilot.app
        assert (await offered(pilot, "17"))[0] == "rank 17"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.view.chosen == 17, "chosen")
        await offered(pilot, "printed")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, LogScreen) and app.screen.rank == 17, "the log")
        await pilot.press("escape", "enter")
        await offered(pilot, "rank 2")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RankScreen) and app.screen.rank == 2, "another rank's screen")
        await offered(pilot, "pause all")
        await pilot.press("enter")
        await until(pilot, lambda: source.asked == ["pause"], "paused")


@pytest.mark.parametrize(("key", "query"), [("", "pause all"), ("question_mark", "close")])
async def test_enter_twice_does_it_once(key: str, query: str) -> None:
    """Pressed again before the palette is gone, it neither does the thing twice nor ends the dashboard."""
    source = StillSource(frame())
    app = dashboard(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press(*([key] if key else []))
        below = app.screen
        await offered(pilot, query)
        for _ in range(3):
            app.post_message(events.Key("enter", None))
        await until(pilot, lambda: bool(source.asked) or app.screen not in (below, *palettes(app)), "it is done")
        await pilot.pause()
        assert source.asked == ([] if key else ["pause"])
        assert not palettes(app)
    assert app.failure is None
