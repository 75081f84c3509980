"""Keys at random, in bursts that come before anything of the screen they open is there."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from textual import events

from ddptop.agent.client.acting.kill import Aim
from ddptop.agent.client.frame import Frame
from ddptop.agent.wire.frames import STATES
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.app.keys import keymap
from ddptop.tui.launch.programs import Option
from ddptop.tui.link.fleet import Fleet, Listing, RunLine
from support.screens.fleets import FRAMES, FleetSource, StillFleet
from support.screens.frames import NOW, frame

BURSTS: Final = 12
SIZES: Final = ((40, 10), (60, 15), (80, 24), (119, 30), (120, 40), (200, 50))
OPENERS: Final = (
    "r", "l", "f", "g", "e", "s", "o", "k", "x", "m", "C", "R", "S", "P", "D", "M", "enter", "question_mark", "ctrl+p",
    "1", "2", "3", "4", "tab", "delete", "slash",
)  # fmt: skip
"""Keys that open a screen, a dialog, a list or a view, or show another run."""
CLOSERS: Final = ("escape", "q", "r", "f", "enter", "escape")
SLOWNESS_S: Final = (0.0, 0.001, 0.02)


class SlowFleet(StillFleet):
    """A fleet on a slow disk: each look at it takes its time."""

    def __init__(self, frames: tuple[Frame, ...], rng: random.Random) -> None:
        super().__init__(frames)
        self.rng = rng

    def listing(self, shown: RunLine | None) -> Listing:
        time.sleep(self.rng.choice(SLOWNESS_S))
        return super().listing(shown)

    def options(self, program: str) -> tuple[Option, ...]:
        time.sleep(self.rng.choice(SLOWNESS_S))
        return super().options(program)


class SlowSource(FleetSource):
    """A run of it: what a screen asks for comes late."""

    fleet: SlowFleet

    def __init__(self, fleet: SlowFleet, run: str) -> None:
        super().__init__(fleet, run)
        self.early: list[Callable[[], None]] = []
        """Called at the first look, when no screen is there yet."""

    def poll(self) -> None:
        while self.early:
            self.early.pop(0)()

    def victims(self, aim: Aim) -> str:
        time.sleep(self.fleet.rng.choice(SLOWNESS_S))
        return super().victims(aim)

    def resumable(self) -> bool:
        time.sleep(self.fleet.rng.choice(SLOWNESS_S))
        return super().resumable()


async def press_bursts(seed: int, runs: int) -> DdptopApp:
    """Open, leave and open again whatever there is, from the start of a dashboard of so many runs; return the app.

    The first keys come before the first screen is there, and each burst so many turns of the loop after the last.
    """
    rng = random.Random(seed)
    fleet = SlowFleet(FRAMES[:runs], rng)
    checked: Fleet = fleet
    source = SlowSource(fleet, rng.choice(FRAMES[:runs]).run)
    if rng.random() < 0.3:
        # Nothing is known of it yet.
        source.current = frame("starting", 0, run=source.current.run)
    app = DdptopApp(source, clock=lambda: NOW, fleet=checked, listed=rng.random() < 0.7)
    # Nothing leaves it, and nothing is written.
    for name in ("leave", "snapshot", "suspend"):
        setattr(app, f"action_{name}", lambda: None)
    others = [key for _, action in keymap.actions(DdptopApp) for key in action.keys if key != "ctrl+c"]

    def press(key: str) -> None:
        app.post_message(events.Key(key, key if len(key) == 1 else None))

    for key in rng.choices(OPENERS, k=rng.randrange(4)):
        source.early.append(partial(press, key))
    async with app.run_test(size=rng.choice(SIZES), notifications=True) as pilot:
        assert not source.early
        for burst in range(BURSTS):
            key = rng.choice(OPENERS)
            again = rng.choice([(key,), (key, rng.choice(CLOSERS)), (key, rng.choice(CLOSERS), key)])
            for each in (*again, *rng.choices((*OPENERS, *others), k=rng.randrange(3))):
                press(each)
                for _ in range(rng.choice([0, 0, 0, 1, 3, 9])):
                    await asyncio.sleep(0)
            if burst % 4 == 3:
                source.current = frame(rng.choice(STATES), rng.choice([0, 1, 2, 3]), run=source.current.run)
                await pilot.resize_terminal(*rng.choice(SIZES))
            for _ in range(rng.choice([0, 1, 5, 20, 60])):
                await asyncio.sleep(0)
            if rng.random() < 0.2:
                await pilot.pause()
        # A test ends the screens while keys are still on their way.
        await pilot.pause()
    return app
