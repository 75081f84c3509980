"""Dashboards under test: made with a clock that stands still, waited for, and read as text."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Static

from ddptop.agent.client.frame import Frame
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.app.keys import keymap
from ddptop.tui.drawing.theme import DARK, ink
from ddptop.tui.screens.dialogs.kill import KillDialog
from ddptop.tui.views.table.table import RankTable
from support.harness import DEADLINE_S
from support.screens.frames import NOW, StillSource

SIZES = {"80x24": (80, 24), "120x40": (120, 40), "200x50": (200, 50)}
INK = ink(DARK.name)
KEYS = keymap.Names(DdptopApp, {})


def dashboard(source: StillSource) -> DdptopApp:
    """Return a dashboard with a clock that stands still."""
    return DdptopApp(source, clock=lambda: NOW)


async def until(pilot: Pilot[None], condition: Callable[[], object], what: str) -> None:
    """Wait until the app has come to a condition."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        await pilot.pause(0.01)


def seen(app: App[Any]) -> str:
    """Return the text on the screen."""
    return "\n".join("".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips())


async def rests(pilot: Pilot[None]) -> None:
    """Wait until the screen no longer changes: a plot is drawn again once its canvas has a size, and once it is due.

    Only for what comes by the clock: a worker may take longer than any rest, and has to be waited for by what it shows.
    """
    deadline = time.monotonic() + DEADLINE_S
    same, before = 0, None
    while same < 10:
        assert time.monotonic() < deadline, "the screen rests"
        await pilot.pause(0.05)
        await pilot.pause()
        now = [list(strip) for strip in pilot.app.screen._compositor.render_strips()]
        same, before = (same + 1 if now == before else 0), now


def footer_keys(app: App[Any]) -> set[str]:
    """Return what the footer offers."""
    return {active.binding.description for active in app.screen.active_bindings.values() if active.binding.show}


async def settled(pilot: Pilot[None], *keys: str) -> None:
    """Press the keys and wait until everything that comes late is drawn."""
    app = pilot.app
    assert isinstance(app, DdptopApp)
    deadline = time.monotonic() + DEADLINE_S
    await pilot.press(*keys)
    for place in app.screen.query("#plots"):
        while place.display and not place.query("Plot"):
            assert time.monotonic() < deadline
            await pilot.pause(0.01)
    while isinstance(app.screen, KillDialog) and "pid " not in victims(app) and "torchrun" not in victims(app):
        assert time.monotonic() < deadline
        await pilot.pause(0.01)
    while app.frame is None:
        assert time.monotonic() < deadline
        await pilot.pause(0.01)
    while any(worker.group == "view" and not worker.is_finished for worker in app.workers):
        assert time.monotonic() < deadline
        await pilot.pause(0.01)
    await pilot.pause()
    for place in app.screen.query("#plots Plot"):
        has_losses = any(rank.loss is not None for rank in app.frame.ranks)
        while place.display and place.size and has_losses and place.has_class("-empty"):
            assert time.monotonic() < deadline
            await pilot.pause(0.01)
    await pilot.pause()


def victims(app: DdptopApp) -> str:
    """Return what the kill dialog says of its victims."""
    return str(app.screen.query_one("#victims", Static).content)


def still_app(app_frame: Frame) -> DdptopApp:
    """Return a dashboard that shows a still frame."""
    return DdptopApp(StillSource(app_frame), clock=lambda: NOW)


def table_of(app: App[Any]) -> RankTable:
    return app.screen.query_one(RankTable)


def lines(app: App[Any]) -> list[str]:
    """Return the table's lines, titles first."""
    table = table_of(app)
    return [table.render_line(y).text.rstrip() for y in range(table.size.height)]


def numbers(app: App[Any]) -> list[int]:
    """Return the ranks in the order they are in."""
    return [int(line.split()[0]) for line in lines(app)[1:] if line.strip()[:1].isdigit()]


def text_of(row: object) -> str:
    """Return a row without its styles."""
    return "".join(segment.text for segment in row)  # type: ignore[attr-defined]
