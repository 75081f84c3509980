"""Dialogs: what an open one paints, judged by what is rendered and not by a clock, and which keys it takes."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from support.harness import DEADLINE_S
from support.screens.frames import NOW, StillSource, frame
from textual._compositor import Compositor
from textual.pilot import Pilot
from textual.widgets import Button, Input

from ddptop.agent.client.acting.kill import Consent
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.link.source import Refused
from ddptop.tui.screens.dialogs import dialog
from ddptop.tui.screens.dialogs.dialog import Dialog
from ddptop.tui.screens.dialogs.kill import KillDialog
from ddptop.tui.screens.dialogs.pickers import ColumnsDialog, ProcessMenu, SignalMenu
from ddptop.tui.screens.dialogs.question import Question
from ddptop.tui.screens.help import HelpScreen

OPENED = {
    "k": KillDialog,
    "k s": SignalMenu,
    "x": Question,
    "question_mark": HelpScreen,
    "2 C": ColumnsDialog,
}


def dashboard(source: StillSource) -> DdptopApp:
    """Return a dashboard whose clock stands still and that takes no frame by itself."""
    app = DdptopApp(source, clock=lambda: NOW)
    app.set_interval = lambda *_, **__: None  # type: ignore[assignment,method-assign]
    return app


async def settled(pilot: Pilot[None]) -> None:
    """Wait until nothing is left to be painted, and the button is no longer shown as pressed."""
    for _ in range(5):
        await pilot.pause(0.03)


async def rests(pilot: Pilot[None], painted: Counter[str]) -> None:
    """Wait until a frame without a change paints nothing: the plot and the focus come a moment after the first."""
    assert isinstance(pilot.app, DdptopApp)
    for _ in range(20):
        painted.clear()
        pilot.app.repaint()
        await settled(pilot)
        if not painted:
            return


async def until(pilot: Pilot[None], condition: Callable[[], object], what: str) -> None:
    """Wait until the app has come to a condition."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        await pilot.pause(0.01)


def lines(app: DdptopApp) -> list[list[tuple[str, str]]]:
    """Return the screen as it would be painted now: text and style of all segments, neighbors of a style joined."""
    found = []
    for strip in app.screen._compositor.render_strips():
        found.append([(segment.text, str(segment.style)) for segment in strip.simplify()])
    return found


def text_of(app: DdptopApp) -> str:
    """Return the text on the screen."""
    return "\n".join("".join(text for text, _ in line) for line in lines(app))


@pytest.fixture
def painted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what compositors render, by the screen that they are of."""
    counted: Counter[str] = Counter()
    render = Compositor._render_chops

    def render_and_count(self: Compositor, crop: Any, is_rendered_line: Callable[[int], bool]) -> Any:
        counted[type(self.root).__name__] += sum(map(is_rendered_line, range(self.size.height)))
        return render(self, crop, is_rendered_line)

    monkeypatch.setattr(Compositor, "_render_chops", render_and_count)
    return counted


@pytest.mark.parametrize("rank", [0, 1023])
@pytest.mark.parametrize("size", [(60, 15), (60, 40), (80, 24)])
async def test_the_buttons_of_the_kill_dialog_are_whole(size: tuple[int, int], rank: int) -> None:
    """Each says all that it does, also in a narrow terminal and with a rank of four digits."""
    source = StillSource(frame(world=rank + 4))
    app = dashboard(source)
    async with app.run_test(size=size) as pilot:
        app.push_screen(KillDialog(source, "resnet18-a3f", rank, rank + 4, 5.0))
        await until(pilot, lambda: isinstance(app.screen, KillDialog) and app.screen.query("Button"), "the dialog")
        await pilot.pause()
        shown = text_of(app)
        assert [
            each for each in ("Cancel", "Kill all ranks", f"Kill rank {rank}", "Process…") if each not in shown
        ] == []


@pytest.mark.parametrize("keys", OPENED)
async def test_a_frame_without_a_change_paints_nothing(keys: str, painted: Counter[str]) -> None:
    """Twenty frames of a run that stands still, under each kind of dialog: not one line is rendered."""
    source = StillSource(frame())
    async with dashboard(source).run_test(size=(120, 40)) as pilot:
        app = pilot.app
        assert isinstance(app, DdptopApp)
        await pilot.press(*keys.split())
        assert isinstance(app.screen, OPENED[keys])
        assert isinstance(app.screen, Dialog)
        await settled(pilot)
        # A cursor that blinks in the field of a filter is the field's own.
        app.screen.set_focus(None)
        await rests(pilot, painted)
        for _ in range(20):
            app.repaint()
            await pilot.pause()
        await settled(pilot)
        assert painted == {}


@pytest.mark.parametrize("keys", OPENED)
async def test_a_change_behind_is_painted_rightly(keys: str) -> None:
    """After some more steps of the run below, the screen is as a painting of all of it shows it."""
    source = StillSource(frame())
    async with dashboard(source).run_test(size=(120, 40)) as pilot:
        app = pilot.app
        assert isinstance(app, DdptopApp)
        app.repaint()
        await pilot.press(*keys.split())
        await settled(pilot)
        app.screen.set_focus(None)
        for step in range(1286, 1289):
            source.current = replace(source.current, step=step)
            app.repaint()
            await settled(pilot)
        before = lines(app)
        for screen in app.screen_stack:
            screen.refresh()
        await settled(pilot)
        assert lines(app) == before


@pytest.mark.parametrize("keys", OPENED)
async def test_changes_behind_the_box_are_seen_once_it_has_shrunk(keys: str) -> None:
    """The run goes on behind the box: where the box has shrunk, all is as a whole paint shows it."""
    source = StillSource(frame())
    async with dashboard(source).run_test(size=(120, 40)) as pilot:
        app = pilot.app
        assert isinstance(app, DdptopApp)
        app.repaint()
        await pilot.press(*keys.split())
        await settled(pilot)
        ranks = tuple(replace(rank, step=4321, loss=0.5) for rank in source.current.ranks)
        source.current = replace(source.current, step=4321, ranks=ranks)
        app.repaint()
        await settled(pilot)
        box = app.screen.children[0]
        box.styles.width, box.styles.height, box.styles.max_height = 10, 3, 3
        await settled(pilot)
        before = lines(app)
        assert "4,321" in text_of(app)
        for screen in app.screen_stack:
            screen.refresh()
        await settled(pilot)
        assert lines(app) == before


async def test_a_line_of_the_account_is_painted_where_it_stands(painted: Counter[str]) -> None:
    """Under way and silent, a kill costs nothing; a line that does not make the dialog higher, that line."""
    let_go = threading.Event()
    source = StillSource(frame())

    def kill(grace_s: float, aim: object, progress: Callable[[str], None], consent: Consent) -> str:
        consent.begin()
        progress("SIGTERM to torchrun")
        let_go.wait(DEADLINE_S)
        return "4 ranks and 8 helpers ended, 0 left"

    source.kill = kill  # type: ignore[method-assign,assignment]
    async with dashboard(source).run_test(size=(120, 40)) as pilot:
        app = pilot.app
        assert isinstance(app, DdptopApp)
        await pilot.press("k", "right", "enter")
        await until(pilot, lambda: "SIGTERM to torchrun" in text_of(app), "the account")
        source.current = replace(source.current, ending="4 ranks left, SIGKILL in 9 s")
        app.repaint()
        await until(pilot, lambda: "SIGKILL in 9 s" in text_of(app), "the countdown")
        await settled(pilot)
        painted.clear()
        # Several looks at the account, a tenth of a second apart.
        await pilot.pause(0.5)
        assert painted == {}
        let_go.set()
        await until(pilot, lambda: "0 left" in text_of(app), "the end")


async def test_escape_cancels_what_has_not_begun_and_closes_what_has() -> None:
    """The first escape is the cancelling, told in the dialog; a kill that has begun goes on."""
    asked, let_go = threading.Event(), threading.Event()
    source = StillSource(frame())
    begun: list[bool] = []

    def kill(grace_s: float, aim: object, progress: Callable[[str], None], consent: Consent) -> str:
        asked.set()
        progress("waiting for the observer")
        let_go.wait(DEADLINE_S)
        begun.append(consent.begin())
        if not begun[-1]:
            raise Refused("cancelled; nothing was killed")
        return "4 ranks ended"

    source.kill = kill  # type: ignore[method-assign,assignment]
    async with dashboard(source).run_test(size=(120, 40)) as pilot:
        app = pilot.app
        assert isinstance(app, DdptopApp)
        await pilot.press("k", "right", "enter")
        await until(pilot, lambda: "waiting for the observer" in text_of(app), "the account")
        assert "cancels" in text_of(app)
        await pilot.press("escape")
        assert isinstance(app.screen, KillDialog), "it says what came of it"
        await until(pilot, lambda: "cancelled unless it has begun" in text_of(app), "the hint")
        let_go.set()
        await until(pilot, lambda: "cancelled; nothing was killed" in text_of(app), "the refusal")
        await pilot.press("escape")
        assert not isinstance(app.screen, KillDialog)
    assert begun == [False]


async def test_the_warning_names_the_timeout_of_this_run() -> None:
    """A stop of one rank fails the others after the timeout that their process group has, where it is known."""
    source = StillSource(frame(timeout_s=77.0))
    async with dashboard(source).run_test(size=(120, 40)) as pilot:
        app = pilot.app
        assert isinstance(app, DdptopApp)
        await pilot.press("k")
        app.repaint()
        source.current = replace(source.current, at=source.current.at + 1)
        app.repaint()
        await pilot.press("s", *"stop")
        await until(pilot, lambda: "(77 s)" in " ".join(text_of(app).split()), "the warning")


CONFIRMING = {"k": KillDialog, "x": Question, "F": Question, "R": Question}
"""Keys of dialogs with buttons, of which one ends, stops or starts something."""
SHIPPED_SETTLE_S = dialog.SETTLE_S
"""Read before a fixture changes it."""
STATES = {"F": "stalled", "R": "failed"}


@pytest.mark.parametrize("key", CONFIRMING)
async def test_nothing_that_acts_is_marked_when_a_dialog_opens(key: str) -> None:
    """Enter right away closes it and does nothing, whatever the question; so does q."""
    source = StillSource(frame(STATES.get(key, "running"), checkpoints=True))
    async with dashboard(source).run_test(size=(120, 40)) as pilot:
        for closing in ("enter", "q", "escape"):
            await pilot.press(key)
            assert isinstance(pilot.app.screen, CONFIRMING[key])
            assert isinstance(pilot.app.focused, Button)
            assert pilot.app.focused.id == "cancel"
            await pilot.press(closing)
            assert not isinstance(pilot.app.screen, Dialog)
    assert source.asked == []


async def test_q_closes_what_takes_no_text() -> None:
    """In the list of processes and in the help, too; where one types, it is a letter."""
    async with dashboard(StillSource(frame())).run_test(size=(120, 40)) as pilot:
        await pilot.press("k", "right", "right", "right", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ProcessMenu), "the list")
        await pilot.press("q")
        assert isinstance(pilot.app.screen, KillDialog)
        await pilot.press("s", "q")
        assert isinstance(pilot.app.screen, SignalMenu)
        assert pilot.app.screen.query_one(Input).value == "q"
        await pilot.press("escape", "q", "question_mark", "q")
        assert not isinstance(pilot.app.screen, Dialog)


@pytest.mark.parametrize("key", ["k", "R"])
async def test_an_enter_that_comes_with_the_opening_is_ignored(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text typed ahead moves the mark and ends with Enter: nothing is done, and the dialog says so."""
    source = StillSource(frame(STATES.get(key, "running"), checkpoints=True))
    async with dashboard(source).run_test(size=(120, 40)) as pilot:
        app = pilot.app
        assert isinstance(app, DdptopApp)
        monkeypatch.setattr(dialog, "SETTLE_S", 3600.0)
        await pilot.press(key, "right", "enter")
        assert isinstance(app.screen, CONFIRMING[key])
        await until(pilot, lambda: "Enter ignored, it came too soon" in text_of(app), "the hint")
        assert source.asked == []
        await pilot.press("f9")
        await until(pilot, lambda: "Enter ignored" not in text_of(app), "the keys again")
        monkeypatch.setattr(dialog, "SETTLE_S", 0.0)
        await pilot.press("enter")
        await until(pilot, lambda: source.asked, "done")


@pytest.mark.parametrize("key", ["k", "R"])
async def test_an_enter_after_other_text_is_ignored_once(key: str) -> None:
    """A command for the shell, at any pace, does nothing here; an Enter of its own does what the marked button says."""
    source = StillSource(frame(STATES.get(key, "running"), checkpoints=True))
    async with dashboard(source).run_test(size=(120, 40)) as pilot:
        app = pilot.app
        assert isinstance(app, DdptopApp)
        await pilot.press(key, "right", *"ddptop", "space", *"attach", "enter")
        assert isinstance(app.screen, CONFIRMING[key])
        await until(pilot, lambda: "Enter ignored, it came with other keys" in text_of(app), "the hint")
        assert source.asked == []
        await pilot.press("enter")
        await until(pilot, lambda: source.asked, "done")


def test_nobody_reads_a_question_faster_than_it_takes_an_enter() -> None:
    """What ships is long enough for text that is typed on; the other tests do without it."""
    assert SHIPPED_SETTLE_S >= 0.3


async def test_news_stays_when_a_dialog_over_another_one_closes() -> None:
    """What was told before the first one opened is taken away, and nothing that was told since."""
    async with dashboard(StillSource(frame())).run_test(size=(120, 40)) as pilot:
        pilot.app.notify("old")
        await pilot.press("k")
        pilot.app.notify("news")
        await pilot.press("s")
        assert isinstance(pilot.app.screen, SignalMenu)
        pilot.app.notify("latest")
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, KillDialog)
        assert "latest" in {each.message for each in pilot.app._notifications}


async def test_a_signal_is_sent_only_once_it_was_chosen() -> None:
    """No row is marked at first; the arrows mark the first and the last one, typing the first that fits."""
    source = StillSource(frame())
    for keys, number in (("down", signal.SIGTERM), ("down down", signal.SIGKILL), ("u s r 1", signal.SIGUSR1)):
        source.asked.clear()
        async with dashboard(source).run_test(size=(120, 40)) as pilot:
            await pilot.press("k", "s", "enter")
            assert isinstance(pilot.app.screen, SignalMenu)
            await pilot.press(*keys.split(), "enter")
            await until(pilot, lambda: source.asked, "sent")
        assert source.asked == [f"signal {int(number)} None"]
