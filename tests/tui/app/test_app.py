"""The dashboard under keys, mouse, resizes, signals and errors, with a fake run behind it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.harness import DEADLINE_S
from support.screens.dashboards import dashboard, footer_keys, seen, until
from support.screens.frames import NOW, MovingSource, StillSource, frame, hung_frame, rank_frame
from support.screens.terminal import RUN, Terminal
from textual.binding import Binding
from textual.widgets import Button, Static

from ddptop.agent.client.acting.kill import Aim, Consent
from ddptop.agent.client.acting.waiting import Waiting
from ddptop.agent.client.host.settings import Settings
from ddptop.agent.client.watch import LONG_POLL_S
from ddptop.agent.wire.frames import STATES
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.screens.dialogs.kill import KillDialog
from ddptop.tui.screens.dialogs.pickers import ProcessMenu, SignalMenu
from ddptop.tui.screens.dialogs.question import Question
from ddptop.tui.screens.help import HelpScreen
from ddptop.tui.screens.lists import LogScreen
from ddptop.tui.screens.rank import RankScreen
from ddptop.tui.screens.run import RunScreen, RunsScreen
from ddptop.tui.views.heatmap.heatmap import Heatmap
from ddptop.tui.views.panels import PanelGrid
from ddptop.tui.views.screen.keybar import KeyBar
from ddptop.tui.views.screen.loglist import LogList
from ddptop.tui.views.timeline.timeline import TimelineView

DIALOGS = KillDialog, ProcessMenu, Question, SignalMenu
SIZES = {"-narrow", "-middle", "-wide", "-tiny", "-short", "-tall"}


async def test_arrows_and_tab_choose_a_rank() -> None:
    """Arrows move in the grid, tab goes round, home and end to its edges."""
    async with dashboard(StillSource(frame())).run_test(size=(80, 24), notifications=True) as pilot:
        grid = pilot.app.screen.query_one(PanelGrid)
        for key, expected in (
            ("right", 1), ("down", 3), ("left", 2), ("up", 0), ("up", 0), ("left", 0),
            ("tab", 1), ("end", 3), ("tab", 0), ("shift+tab", 3), ("home", 0),
        ):  # fmt: skip
            await pilot.press(key)
            assert grid.chosen == expected, key


async def test_the_mouse_chooses_and_opens() -> None:
    """A click chooses the panel under it, a double click opens that rank's screen."""
    async with dashboard(StillSource(frame())).run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.click(PanelGrid, offset=(60, 10))
        assert pilot.app.screen.query_one(PanelGrid).chosen == 3
        await pilot.click(PanelGrid, offset=(10, 10), times=2)
        assert isinstance(pilot.app.screen, RankScreen)
        assert pilot.app.screen.rank == 2


async def test_enter_opens_a_rank_and_escape_returns_to_it() -> None:
    """Left and right go through the ranks in a ring; the one shown last is chosen on return."""
    async with dashboard(StillSource(frame())).run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.press("right", "enter")
        assert "rank 1 of 4" in seen(pilot.app)
        await pilot.press("right")
        assert "rank 2 of 4" in seen(pilot.app)
        await pilot.press("left", "left", "left")
        assert "rank 3 of 4" in seen(pilot.app)
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, RunScreen)
        assert pilot.app.screen.query_one(PanelGrid).chosen == 3


async def test_space_pauses_and_resumes() -> None:
    """Space holds the run, then lets it go; the footer offers what works."""
    source = StillSource(frame())
    async with dashboard(source).run_test(size=(80, 24), notifications=True) as pilot:
        app = pilot.app
        assert "Pause" in footer_keys(app)
        await pilot.press("space")
        await until(pilot, lambda: "Resume" in footer_keys(app), "resume is offered")
        assert "Pause" not in footer_keys(app)
        await pilot.press("space")
        await until(pilot, lambda: source.asked == ["pause", "resume"], "resumed")


@pytest.mark.parametrize(
    ("state", "key", "said"),
    [
        ("finished", "x", "x does nothing: the run has ended"),
        ("failed", "space", "space does nothing: the run has ended"),
        ("running", "R", "R does nothing: the run has not ended"),
        ("running", "full_stop", ". does nothing: the run is not paused"),
        ("starting", "space", "space does nothing: the run is starting"),
        ("frozen", "x", "x does nothing: the run is frozen; space resumes it"),
        ("pausing", "M", "M does nothing: another action is under way; space cancels it"),
        ("running", "p", ""),
    ],
)
async def test_a_key_that_does_nothing_now_says_why(state: str, key: str, said: str) -> None:
    """In one line, once while it can be read, however often the key is pressed; a key without a meaning is silent."""
    source = StillSource(frame(state))
    async with dashboard(source).run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.press(key, key, key)
        assert [each.message for each in pilot.app._notifications] == ([said] if said else [])
    assert source.asked == []


async def test_a_key_that_is_remapped_says_why_it_does_nothing() -> None:
    """The user's own key is named; the one that it had before is silent."""
    settings = Settings(keys={"run.stop": "z"})
    async with DdptopApp(StillSource(frame("finished")), settings=settings).run_test(
        size=(120, 40), notifications=True
    ) as pilot:
        await pilot.press("x", "z")
        assert [each.message for each in pilot.app._notifications] == ["z does nothing: the run has ended"]


@pytest.mark.parametrize("key", ["space", "c"])
async def test_a_message_does_not_repeat_the_event_in_sight(key: str) -> None:
    """What was done stands among the events of the run's screen; the screen of a rank has none, and is told."""
    source = StillSource(frame())
    async with dashboard(source).run_test(size=(80, 24), notifications=True) as pilot:
        app = pilot.app
        await pilot.press(key)
        await until(pilot, lambda: source.asked and app.acting._under_way is None, "it is done")  # type: ignore[attr-defined]
        assert not list(app._notifications)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RankScreen), "a rank")
        await pilot.press("full_stop" if key == "space" else key)
        await until(pilot, lambda: len(source.asked) == 2 and list(app._notifications), "a message")


@pytest.mark.parametrize("size", [(80, 24), (60, 15)])
@pytest.mark.parametrize(("state", "keys", "asked"), [("paused", ["space"], "resume"), ("stalled", ["F"], "freeze")])
async def test_a_resume_and_a_freeze_are_told_where_no_event_is_in_sight(
    state: str, keys: list[str], asked: str, size: tuple[int, int]
) -> None:
    """Their events say them on a screen that has room for events; a low terminal has none, and gets a message."""
    source = StillSource(frame(state))
    async with dashboard(source).run_test(size=size, notifications=True) as pilot:
        app = pilot.app
        await pilot.press(*keys)
        if asked == "freeze":
            await until(pilot, lambda: isinstance(app.screen, Question), "the question")
            app.screen.dismiss("freeze")
        await until(pilot, lambda: source.asked == [asked] and app.acting._under_way is None, "it is done")  # type: ignore[attr-defined]
        assert bool(list(app._notifications)) == (size == (60, 15))


async def test_a_count_before_the_dot_makes_so_many_steps() -> None:
    """`.` makes one step; `1` `0` `.` ten, shown while it is typed, however long that takes; a digit can be deleted."""
    source = StillSource(frame("paused"))
    async with dashboard(source).run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("full_stop")
        await until(pilot, lambda: source.asked == ["step 1"], "one step")
        timers = {timer.name for timer in pilot.app.screen._timers}
        await pilot.press("0", "1", "0")
        assert "10▏ . steps · esc clears" in seen(pilot.app)
        assert {timer.name for timer in pilot.app.screen._timers} == timers, "no clock has a part in it"
        await pilot.press("7", "backspace", "full_stop")
        await until(pilot, lambda: source.asked == ["step 1", "step 10"], "ten steps")
        await until(pilot, lambda: "▏ . steps" not in seen(pilot.app), "it is over")
        await pilot.press(*"12345678", "full_stop")
        await until(pilot, lambda: source.asked[2:] == ["step 123456"], "no digit takes the place of another")


@pytest.mark.parametrize("key", ["escape", "space", "c", "x", "k", "g", "question_mark", "f"])
async def test_any_other_key_that_acts_clears_the_count(key: str) -> None:
    """What was typed for a step that was not made is not left for a later one; `esc` does no more than that."""
    source = StillSource(frame("paused"))
    async with dashboard(source).run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("2", "5")
        assert "25▏" in seen(pilot.app)
        await pilot.press(key)
        await until(pilot, lambda: "25▏" not in seen(pilot.app), "cleared")
        while len(pilot.app.screen_stack) > 1:
            pilot.app.pop_screen()
        source.current = frame("paused")
        await until(pilot, lambda: pilot.app._live.frame.state == "paused", "paused again")  # type: ignore[attr-defined]
        asked = len(source.asked)
        await until(pilot, lambda: pilot.app.acting._under_way is None, "nothing is under way")  # type: ignore[attr-defined]
        await pilot.press("full_stop")
        await until(pilot, lambda: "step 1" in source.asked[asked:], "one step")


async def test_digits_are_typed_where_they_are_seen_only() -> None:
    """The log has no header, and the filter of the table takes its digits itself."""
    source = StillSource(frame("paused"))
    async with dashboard(source).run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("g", "5", "escape", "full_stop")
        await until(pilot, lambda: source.asked == ["step 1"], "one step")
        await pilot.press("2", "enter")
        await until(pilot, lambda: pilot.app.screen.query("RankTable"), "the table")
        await pilot.press("slash", "3")
        await until(pilot, lambda: "/3▏" in seen(pilot.app), "the filter")
        assert "3▏ ." not in seen(pilot.app)


async def test_a_digit_is_the_key_of_a_view() -> None:
    """At once where the run is not paused; while it is, `enter` shows the view, as the line says."""
    for state in ("running", "paused"):
        async with dashboard(StillSource(frame(state))).run_test(size=(80, 24), notifications=True) as pilot:
            await pilot.press("2")
            if state == "paused":
                assert "2▏ . steps · ⏎ view 2 · esc clears" in seen(pilot.app)
                assert not pilot.app.screen.query("RankTable")
                await pilot.press("enter")
            await until(pilot, lambda: pilot.app.screen.query("RankTable"), "the view")
            assert "▏ . steps" not in seen(pilot.app)
    async with dashboard(StillSource(frame("paused"))).run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("9")
        assert "9▏ . steps · esc clears" in seen(pilot.app)


def test_a_frame_may_come_before_the_widgets() -> None:
    """A screen that has not been laid out yet can be asked what it shows, as happens when another run is shown."""
    assert RunScreen(frame(), "table").in_sight == {0}


async def test_a_stop_asks_how() -> None:
    """Saving comes first where the script can, without it is a choice; the button that cancels is the marked one."""
    source = StillSource(frame(checkpoints=True))
    async with dashboard(source).run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("c")
        await until(pilot, lambda: source.asked == ["checkpoint"], "saved")
        await pilot.press("x", "escape", "x", "q", "x", "enter")
        assert source.asked == ["checkpoint"]
        await pilot.press("x", "right", "enter")
        await until(pilot, lambda: source.asked == ["checkpoint", "stop True"], "saved and stopped")
    source = StillSource(frame())
    async with dashboard(source).run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("x")
        assert "No checkpoint function registered" in seen(pilot.app)
        assert "Stop without saving" in seen(pilot.app)
        await pilot.press("right", "enter")
        await until(pilot, lambda: source.asked == ["stop False"], "stopped")


async def test_a_stop_of_a_run_that_hangs_promises_no_step() -> None:
    """It says how the run hangs, and what ends it."""
    async with dashboard(StillSource(hung_frame())).run_test(size=(80, 24)) as pilot:
        await pilot.press("x")
        await until(pilot, lambda: "Stop without saving" in seen(pilot.app), "the question")
        shown = " ".join(str(each.content) for each in pilot.app.screen.query(Static))
        assert "rank 1 hangs: it sleeps" in shown
        assert "cancel this and press k." in shown
        assert "stop at the same step" not in shown


async def test_a_group_that_cannot_be_held_may_be_frozen() -> None:
    """The reason and the price are told before, the countdown after, and space resumes it."""
    source = StillSource(frame(timeout_s=1800.0))
    source.refusal, source.unholdable = "the ranks do not share a step count", True
    async with dashboard(source).run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("space")
        await until(pilot, lambda: "do not share a step count" in seen(pilot.app), "the reason")
        assert "29:59" in seen(pilot.app)
        source.refusal = None
        await pilot.press("right", "enter")
        await until(pilot, lambda: source.asked == ["pause", "freeze"], "frozen")
        stood = tuple(rank_frame(rank, "frozen", step_age_s=12.4) for rank in range(4))
        source.current = frame("frozen", timeout_s=1800.0, ranks=stood)
        await until(pilot, lambda: "a collective may fail in 29:47" in seen(pilot.app), "the countdown")
        await pilot.press("space")
        await until(pilot, lambda: source.asked[-1] == "resume", "it goes on")


async def test_a_refusal_shows_its_reason() -> None:
    """What was refused says why, as text."""
    source = StillSource(frame())
    source.refusal = "rank 2 did not answer [/bold]"
    async with dashboard(source).run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("space")
        await until(pilot, lambda: "rank 2 did not answer [/bold]" in seen(pilot.app), "the reason")
        assert source.current.state == "running"


async def test_a_slow_pause_does_not_hold_up_the_screen() -> None:
    """While the pause is under way other keys work; whom it waits for is told, and a second press cancels it."""
    source = StillSource(frame())
    let_go = threading.Event()
    pause, asked = source.pause, []

    def slow(waiting: Waiting | None = None) -> str:
        assert waiting is not None
        asked.append(waiting)
        waiting.tell("pausing: waiting for rank 1")
        source.current = replace(source.current, waiting=waiting.line)
        assert let_go.wait(DEADLINE_S)
        source.current = replace(source.current, waiting="")
        return pause()

    source.pause = slow  # type: ignore[method-assign]
    async with dashboard(source).run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("space", "right")
        assert pilot.app.screen.query_one(PanelGrid).chosen == 1
        await until(
            pilot, lambda: "pausing: waiting for rank 1 · space cancels · F freezes" in seen(pilot.app), "its wait"
        )
        assert {"Cancel", "Freeze"} <= set(footer_keys(pilot.app))
        assert "Pause" not in footer_keys(pilot.app)
        await pilot.press("space")
        await until(pilot, lambda: asked[0].cancelled, "the second press cancels it")
        let_go.set()
        await until(pilot, lambda: source.current.state == "paused", "held")
    assert source.asked == ["pause"]


@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        (("right", "enter"), "kill None 60"),
        (("right", "right", "enter"), "kill 2 60"),
        (("down", "down", "left", "enter"), "kill None 60"),
    ],
)
async def test_kill_asks_first_and_tells_the_end(keys: tuple[str, ...], asked: str) -> None:
    """The dialog says who gets which signal, and after how long; once it is done it says that, and nothing else."""
    source = StillSource(frame(grace_s=60.0))
    async with dashboard(source).run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("right", "tab", "k")
        assert isinstance(pilot.app.screen, KillDialog)
        await until(pilot, lambda: "torchrun 4710, 4 ranks, 8 helpers" in seen(pilot.app), "the victims")
        assert "Kill resnet-7f3a?" in seen(pilot.app)
        assert "Sends SIGTERM, then SIGKILL after 60 s." in seen(pilot.app)
        assert {"Cancel", "Kill all ranks", "Kill rank 2"} <= {
            str(each.label) for each in pilot.app.screen.query(Button)
        }
        await pilot.press(*keys)
        await until(pilot, lambda: "4 ranks and 8 helpers ended, 0 left" in seen(pilot.app), "the result")
        assert "TERM to torchrun 4710" in seen(pilot.app)
        await until(pilot, lambda: "Killed" in seen(pilot.app), "the title")
        for said in ("Sends SIGTERM", "torchrun 4710, 4 ranks, 8 helpers", "Kill resnet-7f3a?"):
            assert said not in seen(pilot.app)
        await pilot.press("enter")
        assert isinstance(pilot.app.screen, RunScreen)
        await until(pilot, lambda: "Kill" not in footer_keys(pilot.app), "an ended run cannot be killed")
    assert source.asked == [asked]


async def test_a_second_escape_in_a_burst_closes_nothing_more() -> None:
    """Two come at once, as over a slow line: the screen on top closes, the one below stays."""
    async with dashboard(StillSource(frame())).run_test(size=(120, 40), notifications=True) as pilot:
        for key in ("k", "x", "g", "enter", "question_mark", "ctrl+p"):
            await pilot.press(key)
            await until(pilot, lambda: len(pilot.app.screen_stack) == 2, f"what {key} opens")
            screen = pilot.app.screen
            # Both were sent to the screen before the first of them was answered.
            for _ in range(2):
                screen.dismiss()
            await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen), "the screen below")
        assert pilot.app.screen_stack[0] is pilot.app.screen


async def test_escape_and_cancel_kill_nothing() -> None:
    """Neither Escape, q, nor the cancel button sends anything, and that is the button that is marked."""
    source = StillSource(frame())
    async with dashboard(source).run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("k", "escape")
        assert isinstance(pilot.app.screen, RunScreen)
        await pilot.press("k", "enter")
        assert isinstance(pilot.app.screen, RunScreen)
        await pilot.press("k", "q")
        assert isinstance(pilot.app.screen, RunScreen)
        await pilot.press("k")
        await pilot.click("#cancel")
        assert isinstance(pilot.app.screen, RunScreen)
    assert source.asked == []


async def test_kill_stays_with_the_rank_it_was_opened_for() -> None:
    """When ranks come and go under the open dialog, it still ends the rank that was chosen."""
    source = StillSource(frame())
    app = dashboard(source)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.press("right", "k")
        source.current = replace(source.current, ranks=source.current.ranks[2:])
        await until(pilot, lambda: app.frame is not None and len(app.frame.ranks) == 2, "the ranks are gone")
        await pilot.press("right", "right", "enter")
        await until(pilot, lambda: source.asked, "ended")
    assert source.asked == ["kill 1 5"]


async def test_one_process_is_chosen_from_the_list() -> None:
    """The list shows torchrun, ranks and workers; Enter asks about the marked one, Enter again ends it alone."""
    source = StillSource(frame())
    async with dashboard(source).run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.press("k", "right", "right", "right", "enter")
        await until(pilot, lambda: "data worker" in seen(pilot.app), "the list")
        await pilot.press("down", "down", "enter")
        await until(pilot, lambda: "Kill data worker 4800 of resnet-7f3a?" in seen(pilot.app), "the question")
        await pilot.press("right", "enter")
        await until(pilot, lambda: source.asked, "ended")
    assert source.asked == ["kill 4800 5"]


async def test_a_signal_is_found_by_typing_and_warns_where_it_must() -> None:
    """Typing filters the signals of the platform; SIGSTOP to a rank tells of the collective timeout; Enter sends."""
    source = StillSource(frame())
    async with dashboard(source).run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("right", "k", "right", "right", "s")
        await until(pilot, lambda: "Send a signal to rank 1" in seen(pilot.app), "the menu")
        assert "SIGTERM" in seen(pilot.app)
        await pilot.press("enter")
        assert isinstance(pilot.app.screen, SignalMenu), "nothing is marked before it is chosen"
        await pilot.press(*"usr1")
        await until(pilot, lambda: "SIGTERM" not in seen(pilot.app) and "SIGUSR1" in seen(pilot.app), "the filter")
        assert "collective timeout" not in seen(pilot.app)
        await pilot.press(*["backspace"] * 4, *"stop")
        await until(pilot, lambda: "collective timeout" in " ".join(seen(pilot.app).split()), "the warning")
        await pilot.press("enter")
        await until(pilot, lambda: f"signal {int(signal.SIGSTOP)} sent" in seen(pilot.app), "the account")
        assert "Sent SIGSTOP to rank 1 of resnet-7f3a" in seen(pilot.app)
    assert source.asked == [f"signal {int(signal.SIGSTOP)} 1"]


async def test_a_closed_dialog_lets_the_kill_go_on() -> None:
    """The header counts down meanwhile, k shows the account again, and the end is told once."""
    source, let_go = StillSource(frame()), threading.Event()

    def kill(grace_s: float, aim: Aim, progress: Callable[[str], None], consent: Consent | None = None) -> str:
        assert consent is not None
        consent.begin()
        progress("SIGTERM to torchrun")
        let_go.wait(DEADLINE_S)
        return "4 ranks and 8 helpers ended, 0 left"

    source.kill = kill  # type: ignore[method-assign]
    async with dashboard(source).run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.press("k", "right", "enter")
        await until(pilot, lambda: "SIGTERM to torchrun" in seen(pilot.app), "the account")
        source.current = replace(source.current, state="killing", ending="4 ranks left, SIGKILL in 3 s")
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, RunScreen)
        await until(pilot, lambda: "being ended: 4 ranks left, SIGKILL in 3 s" in seen(pilot.app), "the header")
        await pilot.press("k")
        await until(pilot, lambda: "SIGTERM to torchrun" in seen(pilot.app), "the account again")
        await pilot.press("escape")
        let_go.set()
        await until(pilot, lambda: "8 helpers ended, 0 left" in seen(pilot.app), "the end is told")


async def test_an_ended_run_is_restarted_from_where_the_user_says() -> None:
    """R asks for the beginning or the checkpoint; Escape starts nothing; a live run has no such key."""
    source = StillSource(frame("failed"))
    async with dashboard(source).run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("R", "escape", "R", "enter", "R", "q")
        assert source.asked == [], "the button that cancels is marked"
        await pilot.press("R", "right", "enter")
        await until(pilot, lambda: source.asked, "started")
        await until(pilot, lambda: "Restart" not in footer_keys(pilot.app), "it lives")
    assert source.asked == ["restart True"]


async def test_logs_follow_and_can_be_scrolled_back(tmp_path: Path) -> None:
    """The end is followed; scrolled back it stands still while lines come; `end` follows again."""
    log = tmp_path / "rank-0.log"
    log.write_text("".join(f"line {number}\n" for number in range(200)))
    shown_frame = frame()
    source = MovingSource()
    source.current = replace(shown_frame, ranks=(replace(shown_frame.ranks[0], log=str(log)), *shown_frame.ranks[1:]))
    async with dashboard(source).run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("g")
        assert isinstance(pilot.app.screen, LogScreen)
        await until(pilot, lambda: "line 199" in seen(pilot.app), "the end")
        await pilot.press("pageup")
        await until(pilot, lambda: "scrolled back" in seen(pilot.app), "it says so")
        assert "Follow" in footer_keys(pilot.app)
        view = pilot.app.screen.query_one(LogList)
        place = view.scroll_y
        with log.open("a") as file:
            file.write("".join(f"more {number}\n" for number in range(50)))
        await until(pilot, lambda: any(line.text == "more 49" for line in view.picture.lines), "read")
        assert view.scroll_y == place
        await pilot.press("end")
        await until(pilot, lambda: "more 49" in seen(pilot.app), "the end again")
        await pilot.press("tab")
        assert "there is no file of it on this host" in seen(pilot.app)
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, RunScreen)
        assert pilot.app.screen.query_one(PanelGrid).chosen == 1


async def test_help_lists_every_binding() -> None:
    """Each binding of each screen has an id and a tooltip, and its tooltip is in the help."""
    async with dashboard(StillSource(frame())).run_test(size=(98, 320), notifications=True) as pilot:
        await pilot.press("question_mark")
        assert isinstance(pilot.app.screen, HelpScreen)
        await until(pilot, lambda: "other screens and dialogs" in seen(pilot.app), "the keys")
        text = seen(pilot.app)
        for owner in (DdptopApp, RunScreen, PanelGrid, Heatmap, TimelineView, RankScreen, LogScreen, *DIALOGS):
            for binding in owner.BINDINGS:
                assert isinstance(binding, Binding)
                assert binding.id
                assert binding.tooltip in text
        await pilot.press("tab")
        await until(pilot, lambda: "phases of a step" in seen(pilot.app), "the signs")
        for state in STATES:
            assert state in seen(pilot.app)
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, RunScreen)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_leaving_touches_nothing(key: str) -> None:
    """Leaving ends the dashboard with 0 and asks nothing of the run."""
    source = StillSource(frame())
    app = dashboard(source)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("enter", key)
    assert app.return_code == 0
    assert source.asked == []


async def test_ctrl_c_leaves_even_a_dialog() -> None:
    """No dialog keeps the user in."""
    app = dashboard(StillSource(frame()))
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("k", "ctrl+c")
        await until(pilot, lambda: app.return_code == 0, "left")


@pytest.mark.parametrize("state", ["finished", "failed", "killed", "lost"])
async def test_an_ended_run_stays_on_the_screen(state: str) -> None:
    """The last frame stays, says how it ended and what to do; pause and kill are not offered."""
    source = StillSource(frame(state))
    async with dashboard(source).run_test(size=(80, 24), notifications=True) as pilot:
        text = seen(pilot.app)
        assert state.upper() in text
        assert "q leaves" in text
        assert "0.9348" in text
        assert not {"Pause", "Resume", "Kill"} & footer_keys(pilot.app)
        await pilot.press("space", "k")
        assert isinstance(pilot.app.screen, RunScreen)
    assert source.asked == []


async def test_a_resize_uses_the_new_size() -> None:
    """From small to large and back, the same ranks are there, and the plot where there is room."""
    async with dashboard(StillSource(frame())).run_test(size=(80, 24), notifications=True) as pilot:
        app = pilot.app

        def shows_plot(wanted: bool) -> bool:
            return app.screen.query_one("#plots").display == wanted

        for width, height, plot in (
            (200, 50, True),
            (80, 24, False),
            (120, 40, True),
            (40, 10, False),
            (80, 24, False),
        ):
            await pilot.resize_terminal(width, height)
            await until(pilot, partial(shows_plot, plot), "the plot")
            await pilot.pause()
            assert app.screen.query_one(KeyBar).region.bottom == height
            if width >= 80:
                for rank in range(4):
                    assert re.search(rf"[─━] {rank} ●", seen(app)), (rank, width, height)


async def test_nothing_is_repainted_when_nothing_changes() -> None:
    """The same frame again asks for no repaint; a frame that differs in one rank, for that panel only."""
    source = StillSource(frame())
    async with dashboard(source).run_test(size=(120, 40), notifications=True) as pilot:
        grid = pilot.app.screen.query_one(PanelGrid)
        await pilot.pause()
        grid._exchange_repaint_regions()
        grid.show(replace(source.current, at=NOW + 1))
        assert list(grid._exchange_repaint_regions()) == []
        second = replace(source.current.ranks[1], loss=0.5)
        grid.show(replace(source.current, ranks=(source.current.ranks[0], second, *source.current.ranks[2:])))
        assert len(list(grid._exchange_repaint_regions())) == 1


# In a real terminal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_the_terminal_restored(number: signal.Signals) -> None:
    """TERM and HUP leave the alternate screen, show the cursor, stop the mouse; the code is 128 + n."""
    terminal = Terminal(RUN + "raise SystemExit(run_dashboard(source))")
    try:
        terminal.read_until(b"RUNNING")
        os.kill(terminal.process.pid, number)
        assert terminal.wait() == 128 + number
        for restored in (b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?1000l"):
            assert terminal.written.rindex(restored) > terminal.written.index(b"\x1b[?1049h")
    finally:
        terminal.close()


def test_a_closed_terminal_ends_it() -> None:
    """When the terminal itself goes away, no process stays behind."""
    terminal = Terminal(RUN + "raise SystemExit(run_dashboard(source))")
    try:
        terminal.read_until(b"RUNNING")
        master, terminal.master = terminal.master, os.open(os.devnull, os.O_RDONLY)
        os.close(master)
        os.kill(terminal.process.pid, signal.SIGHUP)
        terminal.process.wait(DEADLINE_S)
    finally:
        terminal.close()


def test_it_paints_soon_and_without_torch() -> None:
    """The dashboard's modules load neither torch nor, before the first paint, the plot library."""
    code = (
        "import sys, ddptop.tui.app.app\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'textual_plot')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("size", [(60, 10), (99, 18), (100, 31), (159, 32), (200, 50)])
async def test_the_first_layout_is_for_the_size_of_the_terminal(size: tuple[int, int]) -> None:
    """The first screen begins with the classes that Textual gives it once it has been laid out."""
    app = dashboard(StillSource(frame()))
    first: list[set[str]] = []
    default = app.get_default_screen

    def noted() -> RunScreen | RunsScreen:
        screen = default()
        first.append({each for each in screen.classes if each in SIZES})
        return screen

    app.get_default_screen = noted  # type: ignore[method-assign]
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        assert first == [{each for each in app.screen.classes if each in SIZES}]
        assert len(first[0]) == 2


async def test_the_plot_is_drawn_when_the_first_losses_come() -> None:
    """A run watched from its start gets its curve, on a canvas as large as the place for it."""
    source = StillSource(frame("starting"))
    app = dashboard(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: bool(app.screen.query("Plot")), "the plot widget")
        source.current = frame()
        await until(pilot, lambda: any("⠀" < char <= "⣿" for char in seen(app)), "the curves")


class Polled(MovingSource):
    """Counts how often it is asked for what has come, and takes long over it, by a clock of its own, where it is to."""

    polls = 0
    takes_s = 0.0
    now = 0.0

    def poll(self) -> None:
        """Take in nothing."""
        self.polls += 1
        self.now += self.takes_s

    def monotonic(self) -> float:
        """Return the time of its clock."""
        return self.now


async def test_behind_a_dialog_the_run_goes_on_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the frames of two seconds two are painted while a dialog is open, and all of them once it has closed."""
    app = DdptopApp(StillSource(frame()), clock=lambda: NOW)
    app.set_interval = lambda *_, **__: None  # type: ignore[assignment,method-assign]
    async with app.run_test(size=(120, 40)) as pilot:
        app.between = app.set_timer(3600, lambda: None)
        painted: list[None] = []
        monkeypatch.setattr(app, "repaint", lambda: painted.append(None))
        for key, expected in (("k", 2), ("escape", 8)):
            await pilot.press(key)
            painted.clear()
            for _ in range(8):
                app.next_frame()
            assert len(painted) == expected


async def test_messages_are_taken_in_with_each_frame_and_between_two_only_while_more_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A frame shows what has come by then; where a poll took long, more are made before the next frame."""
    # Frames come when the test says so.
    monkeypatch.setattr("ddptop.tui.app.app.PAINT_HZ", 1e-3)
    monkeypatch.setattr("ddptop.tui.app.app.POLL_HZ", 100)
    source = Polled()
    monkeypatch.setattr("ddptop.tui.app.app.time", source)
    app = DdptopApp(source)
    async with app.run_test(size=(120, 40)) as pilot:
        app.repaint()
        between: asyncio.Event = app.between._active
        await until(pilot, lambda: not between.is_set(), "no polls between two frames")
        before = source.polls
        app.next_frame()
        assert not between.is_set()
        assert source.polls == before + 1, "a frame shows what has come by then"
        source.takes_s = 1.5 * LONG_POLL_S
        app.next_frame()
        assert between.is_set()
        await until(pilot, lambda: source.polls > before + 5, "polls between two frames")
        source.takes_s = 0.0
        await until(pilot, lambda: not between.is_set(), "no more of them")
