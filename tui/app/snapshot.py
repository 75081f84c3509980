"""Snapshots of the dashboard as SVG, taken without a terminal."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import msgspec
from textual.pilot import Pilot

from ddptop.agent.client import look
from ddptop.agent.client.frame import Frame
from ddptop.agent.client.host.settings import Settings
from ddptop.agent.client.watch import Watch
from ddptop.agent.wire import EACH_RECORD
from ddptop.agent.wire.frames import ENDED
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.app.program import report
from ddptop.tui.link.source import Control, Inspector, Refused
from ddptop.tui.views.plot.placeholder import PlotPlaceholder

QUIET_S: Final = 0.4
"""A screen that has all and in which nothing changed for so long is drawn."""
PATIENCE_S: Final = 10.0
CLOSE_S: Final = 2.0
"""Seconds within which the ranks of a large group that are in sight are known as closely as those of a small one."""


class Still:
    """A source that stands still: what is drawn later is drawn of the same moment."""

    def __init__(self, watch: Watch, frame: Frame) -> None:
        self.control: Control = watch.control
        self.inspector: Inspector = watch.inspector
        self._frame = frame
        self._watch = watch
        self.report = watch.report
        self.diagnoses = watch.diagnoses

    def poll(self) -> None:
        """Take in the numbers that plots look back at: they ask for them when they are drawn."""
        self._watch.poll_history()

    def frame(self) -> Frame:
        """Return the frame it was made with."""
        return self._frame

    def open(self, run: str) -> None:
        """Show no other run."""
        raise Refused("this is a snapshot of one run")

    def watch(self, ranks: frozenset[int], logs: frozenset[int] = frozenset()) -> None:
        """Ask for nothing more."""

    def close(self) -> None:
        """Leave the watch to its owner."""


def take(watch: Watch, size: tuple[int, int], settings: Settings) -> str:
    """Return the dashboard of a run in so many columns and lines, as SVG, once all is there that it shows.

    Raises:
        Refused: the dashboard failed, or a part of it did not come in time.
    """
    frame = _whole(watch)
    if settings.look.color == "auto":
        # A snapshot has all colors, whatever the terminal that asks for it can show.
        settings = msgspec.structs.replace(settings, look=msgspec.structs.replace(settings.look, color="truecolor"))
    app = DdptopApp(Still(watch, frame), settings=settings, clock=lambda: frame.at)
    taken: list[str] = []

    async def pilot(pilot: Pilot[object]) -> None:
        taken.extend([svg] if (svg := await _settled(app, pilot)) is not None else [])
        app.exit()

    app.run(headless=True, size=size, auto_pilot=pilot)
    if app.failure is not None:
        raise Refused(report(app.failure))
    if not taken:
        raise Refused(f"the history of {frame.run} was not there within {PATIENCE_S:g} s")
    return taken[0]


def _whole(watch: Watch) -> Frame:
    """Return the run as it is once all live ranks have been heard."""
    (frame,) = look.heard([watch])
    watch.watch(frozenset(range(frame.world)))
    give_up = time.monotonic() + CLOSE_S
    while not _is_close(frame) and time.monotonic() < give_up:
        watch.poll()
        time.sleep(0.01)
        frame = watch.frame()
    return frame


def _is_close(frame: Frame) -> bool:
    """Say whether all is known of the ranks in sight: of a live large group that comes when somebody looks at them."""
    known = any(loss is not None for rank in frame.ranks for loss in rank.losses)
    return known or not frame.step or frame.world <= EACH_RECORD or frame.state in ENDED


async def _settled(app: DdptopApp, pilot: Pilot[object]) -> str | None:
    """Wait until all is there that the screen shows, and return it as SVG; None where something does not come."""
    give_up = time.monotonic() + PATIENCE_S
    seen, since = "", time.monotonic()
    while True:
        # The frame stays the same, and what a view asked for when it was drawn comes later.
        app.watch_frame(app.frame)
        await pilot.pause()
        svg = app.export_screenshot(title="ddptop")
        now = time.monotonic()
        if svg != seen or not _is_whole(app):
            seen, since = svg, now
        elif now - since > QUIET_S:
            return svg
        if now > give_up:
            return svg if _is_whole(app) else None
        await asyncio.sleep(QUIET_S / 4)


def _is_whole(app: DdptopApp) -> bool:
    """Say whether all has been drawn that comes late: the plot, and what views look back at."""
    history = None if app.frame is None else app.frame.history
    is_drawn = all(place.plot is not None or not place.display for place in app.screen.query(PlotPlaceholder))
    return app.frame is not None and is_drawn and (history is None or history.complete)
