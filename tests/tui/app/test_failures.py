"""An error of the dashboard's own, wherever it comes up, leaves the terminal whole and the run alone."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.screens.dashboards import dashboard, until
from support.screens.frames import StillSource, frame
from support.screens.terminal import RUN, Terminal
from textual.css.query import NoMatches
from textual.events import Key
from textual.messages import ExitApp
from textual.screen import Screen

from ddptop.tui.app.program import FAILED
from ddptop.tui.screens.dialogs.kill import KillDialog
from ddptop.tui.screens.help import HelpScreen
from ddptop.tui.screens.lists import LogScreen
from ddptop.tui.screens.rank import RankScreen
from ddptop.tui.screens.run import RunScreen

PLACES = {
    "timer": ("source", "poll", b""),
    "thread": ("source", "pause", b" "),
    "compose": ("RankScreen", "compose", b"\r"),
    "drawing": ("LogView", "render_line", b""),
    "palette": ("RunCommands", "_actions", b"\x10"),
    "end": ("source", "close", b"q"),
}
"""Where it fails: whose method, and the key after which it is called."""


@pytest.mark.parametrize("place", PLACES)
def test_an_error_of_its_own_is_one_line_and_a_file(place: str) -> None:
    """Terminal restored, one line that names the error as text, a traceback kept, the code not 0."""
    owner, method, key = PLACES[place]
    fault = f"""
from ddptop.tui.app.keys.palette import RunCommands
from ddptop.tui.screens.rank import RankScreen
from ddptop.tui.views.screen.log import LogView
def fail(*args, **options):
    raise ZeroDivisionError('seeded [/fault]')
{owner}.{method} = fail
raise SystemExit(run_dashboard(source))
"""
    terminal = Terminal(RUN + fault)
    try:
        if key:
            terminal.read_until(b"RUNNING")
            os.write(terminal.master, key)
        assert terminal.wait() == FAILED
        after = terminal.written[terminal.written.rindex(b"\x1b[?1049l") :].decode()
        assert "\x1b[?25h" in after
        said = re.search(r"ddptop: the dashboard failed; the run goes on\. (.*)\(traceback in (.*)\)", after)
        assert said is not None, after
        assert "ZeroDivisionError: seeded [/fault]" in said[1]
        assert "in fail" in Path(said[2]).read_text()
        assert "Traceback" not in after
        assert Path(said[2]).parent == Path(tempfile.gettempdir())
        Path(said[2]).unlink()
    finally:
        terminal.close()


OPENED: dict[str, Callable[[], Screen[Any]]] = {
    "rank": lambda: RankScreen(frame(), 0),
    "log": lambda: LogScreen(frame(), 0),
    "help": lambda: HelpScreen([]),
    "run": lambda: RunScreen(frame()),
    "kill": lambda: KillDialog(StillSource(frame()), "resnet", 0, 2, 5.0, None),
}


@pytest.mark.parametrize("turns", [0, 1])
@pytest.mark.parametrize("name", OPENED)
async def test_a_screen_left_while_it_opens_ends_nothing(name: str, turns: int) -> None:
    """Two keys in one burst open and leave a screen without widgets yet; the dashboard and its keys go on."""
    app = dashboard(StillSource(frame()))
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(OPENED[name]())
        for _ in range(turns):
            await asyncio.sleep(0)
        app.pop_screen()
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen), "the help")
    assert app.failure is None


@pytest.mark.parametrize("name", OPENED)
async def test_leaving_while_a_screen_opens_is_no_failure(name: str) -> None:
    """The dashboard is left in the moment in which a screen opens: nothing is told to have failed."""
    app = dashboard(StillSource(frame()))
    async with app.run_test(size=(80, 24)):
        app.push_screen(OPENED[name]())
        app.exit()
    assert app.failure is None


@pytest.mark.parametrize("turns", [0, 1, 4, 30])
async def test_a_page_that_its_browser_closes_at_once_is_no_failure(turns: int) -> None:
    """A browser ends the dashboard past its own way of leaving, also before the first screen has its widgets."""
    source = StillSource(frame())
    app = dashboard(source)
    ends: list[asyncio.Task[None]] = []

    async def end() -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        app.post_message(ExitApp())

    def poll() -> None:
        if not ends:
            ends.append(asyncio.create_task(end()))

    source.poll = poll  # type: ignore[method-assign]
    await app.run_async(headless=True, size=(120, 40))
    assert app.failure is None


async def test_a_worker_that_begins_when_its_screen_is_left_finds_nothing_and_fails_nothing() -> None:
    """Its first turn may come after the widgets have gone, as that of the palette's search in a burst of keys."""
    app = dashboard(StillSource(frame()))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = HelpScreen([])
        app.push_screen(screen)
        await until(pilot, lambda: app.screen is screen, "the help")
        app.pop_screen()
        await until(pilot, lambda: screen.is_left, "its end")

        async def search() -> None:
            screen.query_one("#nowhere")

        await screen.run_worker(search).wait()
    assert app.failure is None


async def test_a_widget_that_is_missing_on_a_shown_screen_is_a_failure() -> None:
    """Only where a screen is being left a missing widget is no error."""
    app = dashboard(StillSource(frame()))

    async def look_for_it() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            app.screen.call_later(lambda: app.screen.query_one("#nowhere"))
            await pilot.pause()

    with pytest.raises(NoMatches):
        await look_for_it()
    assert isinstance(app.failure, NoMatches)


def test_a_key_that_comes_while_it_ends_is_nothing() -> None:
    """There is no screen any more that could take it."""
    app = dashboard(StillSource(frame()))
    assert not app.screen_stack
    app.on_key(Key("k", "k"))
