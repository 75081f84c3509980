"""Text from outside and keys at random: neither can break a view, let alone a terminal."""

from __future__ import annotations

import random
import secrets
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from support.screens.bursts import press_bursts
from support.screens.dashboards import seen, until
from support.screens.frames import EVIL, NOW, StillSource, frame
from textual import events
from textual.screen import Screen

from ddptop.agent.text import clean
from ddptop.agent.wire import Verdict
from ddptop.agent.wire.frames import STATES, EventLine
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.app.keys import keymap
from ddptop.tui.app.keys.palette import Palette
from ddptop.tui.link.source import Refused
from ddptop.tui.screens.dialogs.kill import KillDialog
from ddptop.tui.screens.help import HelpScreen
from ddptop.tui.screens.lists import LogScreen
from ddptop.tui.screens.rank import RankScreen
from ddptop.tui.screens.run import VIEWS, RunScreen
from ddptop.tui.screens.stacks import StacksScreen

FOREIGN = f"n[/foo] [bold 温度{EVIL}"
"""As a program, a host or a metric may call itself; the store cleans it of what is no text."""
STEPS = 10
PLACES: dict[type[Screen[Any]], tuple[str, ...]] = {
    RunScreen: (),
    RankScreen: ("enter",),
    LogScreen: ("g",),
    StacksScreen: ("s",),
    KillDialog: ("k",),
    HelpScreen: ("question_mark",),
    Palette: ("ctrl+p",),
}
"""Where random keys begin, and the keys that lead there."""
SCREENS = ((), ("enter",), ("escape", "g"), ("escape", "question_mark"), ("escape", "ctrl+p"))
"""Keys that show one screen after the other."""


def hostile(log: Path) -> StillSource:
    """Return a run in which every text is hostile."""
    log.write_text(f"{FOREIGN}\n\x1b]0;owned\x07\x1b[2J\u202e{'温' * 200}\n" * 50)
    marked = clean(FOREIGN)
    ranks = tuple(
        replace(
            rank, host=marked, activity=marked, device=marked, ended=marked, fault=marked, mechanism=marked,
            health=marked, log=str(log), metrics={marked: 1.0}, torch_version=marked, python_version=marked,
        )
        for rank in frame().ranks
    )  # fmt: skip
    source = StillSource(
        frame(
            run=marked, program=marked, backend=marked, device=marked, placement=marked, note=marked, ranks=ranks,
            injected=marked, cause=marked, verdicts=(Verdict(1, "slow_rank", marked, 0, rank=1, phase="data"),),
            events=(EventLine(NOW, marked, 0, "error"), EventLine(NOW, marked, 1, marked)),
        )
    )  # fmt: skip
    source.victims = lambda aim: marked  # type: ignore[method-assign]
    source.refusal = marked
    return source


@pytest.mark.parametrize("width", [80, 120])
async def test_hostile_text_is_shown_as_text(tmp_path: Path, width: int) -> None:
    """In every view markup shows as typed, no escape or direction sign gets out, and no line is out of its width."""
    source = hostile(tmp_path / "rank-0.log")
    app = DdptopApp(source, clock=lambda: NOW)
    views = tuple((view.key,) for view in VIEWS)
    screens = (("enter",), ("escape", "g"), ("escape", "k"), ("enter",), ("enter", "ctrl+p"), ("escape", "space"))
    async with app.run_test(size=(width, 40), notifications=True) as pilot:
        for keys in (*views, ("1",), *screens):
            await pilot.press(*keys)
            await pilot.pause()
            text = seen(app)
            assert "[/foo] [bold" in text, keys
            assert not {"\x1b", "\x07", "\x9b", "\u202e", "\u200b"} & set(text), keys
            assert {cell_len(line) for line in text.splitlines()} == {width}, keys
        await until(pilot, lambda: "pause refused" in seen(app), "the refusal")


@pytest.mark.parametrize("seed", [2026, None], ids=["the same", "fresh"])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
async def test_random_keys_and_sizes_break_nothing(
    place: type[Screen[object]], seed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From each place on, keys and resizes at random in changing states, and the dashboard still stands."""
    monkeypatch.chdir(tmp_path)
    # Not even through the palette can it be left.
    monkeypatch.setattr(DdptopApp, "action_leave", lambda self: None)
    number = secrets.randbits(32) if seed is None else seed
    print(f"seed {number}")
    rng = random.Random(number)
    keys = [key for _, action in keymap.actions(DdptopApp) for key in action.keys if key != "ctrl+c"]
    keys += (
        ["escape"] * 8
        + ["ctrl+p", "enter", "g", "k", "question_mark"] * 3
        + ["pageup", "pagedown", "1", "7", "x", "slash", "backspace", "full_stop"]
    )
    source = StillSource(frame(world=5))
    app = DdptopApp(source)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press(*PLACES[place])
        await until(pilot, lambda: isinstance(app.screen, place), "the place to begin at")
        for step in range(STEPS):
            if step % 5 == 4:
                source.current = frame(rng.choice(STATES), rng.choice([0, 1, 2, 5, 40]))
            if step % 3 == 2:
                await pilot.resize_terminal(rng.randrange(1, 120), rng.randrange(1, 40))
            for key in rng.choices(keys, k=3):
                app.post_message(events.Key(key, key if len(key) == 1 else None))
            await pilot.pause()
        assert app.failure is None, f"seed {number}"
        assert app.is_running, f"seed {number}"


@pytest.mark.parametrize("runs", [2, 3])
@pytest.mark.parametrize("seed", [3, None], ids=["the same", "fresh"])
async def test_what_is_opened_and_left_in_one_burst_breaks_nothing(
    seed: int | None, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each screen, dialog and list opened, left and opened again before it is there, on a slow disk too."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    number = secrets.randbits(32) if seed is None else seed
    print(f"seed {number}")
    app = await press_bursts(number, runs)
    assert app.failure is None, f"seed {number}"


async def test_a_run_to_be_looked_at_cannot_be_touched() -> None:
    """No screen offers an action on the run; sent past the screens it is refused, whatever it is called."""
    source = StillSource(frame())
    app = DdptopApp(source, clock=lambda: NOW, read_only=True)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        for keys in SCREENS:
            await pilot.press(*keys)
            offered = {active.binding.id or "" for active in app.screen.active_bindings.values() if active.enabled}
            assert offered
            assert not {name for name in offered if name.startswith("run.")} - {"run.events", "run.stacks"}
            assert "Kill the run" not in seen(app) or isinstance(app.screen, HelpScreen)
            for _, action in keymap.actions(DdptopApp):
                if action.id.startswith("run.") and not isinstance(app.screen, Palette):
                    await pilot.press(*action.keys)
        await pilot.press("escape")
        app.action_act("pause")
        await until(pilot, lambda: "read-only" in seen(app), "the refusal")
    for name in ("kill", "resume"):
        with pytest.raises(Refused, match="read-only"):
            getattr(app.source.control, name)(5.0)
    assert not hasattr(app.source, "anything_added_later")
    assert [each for each in source.asked if each != "close"] == []
