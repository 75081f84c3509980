"""Acting on runs, without a terminal: what is asked before, done in a thread, and told afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from support.screens.dashboards import KEYS
from support.screens.frames import NOW, StillSource, frame
from textual.app import App
from textual.message import Message
from textual.screen import Screen

from ddptop.tui.app.acting import Acted, Acting
from ddptop.tui.app.shown import ShownRun
from ddptop.tui.control.actions import RULES
from ddptop.tui.control.waiting import Waiting
from ddptop.tui.link.fleet import line_of
from ddptop.tui.link.source import Cancelled, Unsavable
from ddptop.tui.screens.dialogs.kill import KillDialog
from ddptop.tui.screens.dialogs.question import FREEZE, RESUME, SAVE_AND_STOP

ANSWERS = {"stop": SAVE_AND_STOP, "restart": RESUME, "freeze": FREEZE}
"""What the user says where there is a question before."""
DONE = {
    "pause": "pause",
    "resume": "resume",
    "cancel": "resume",
    "freeze": "freeze",
    "step": "step 3",
    "checkpoint": "checkpoint",
    "stop": "stop True",
    "restart": "restart True",
}
"""What the source is asked for."""


class Recorded:
    """In place of the app: works when it is told to, and notes what is shown."""

    key_names = KEYS

    def __init__(self) -> None:
        self.app = self
        self.told: list[tuple[str, str]] = []
        self.pushed: list[tuple[Screen[Any], Callable[[str], None]]] = []
        self.works: list[Callable[[], None]] = []
        self.posted: list[Message] = []

    def notify(self, text: str, *, title: str = "", **_: object) -> None:
        self.told.append((title, text))

    def push_screen(self, screen: Screen[Any], callback: Callable[[str], None] = lambda _: None) -> None:
        self.pushed.append((screen, callback))

    def run_worker(self, work: Callable[[], None], *, thread: bool) -> None:
        self.works.append(work)

    def post_message(self, message: Message) -> None:
        self.posted.append(message)


def acting(source: StillSource) -> tuple[Recorded, Acting]:
    app = Recorded()
    return app, Acting(cast(App[None], app), ShownRun(source, lambda: NOW), 5.0)


def work(app: Recorded, acts: Acting) -> None:
    """Do what is waiting to be done, and tell it."""
    app.works.pop()()
    told = app.posted.pop()
    assert isinstance(told, Acted)
    acts.tell(told)


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("action", RULES)
def test_each_action_of_the_table_is_done(action: str, listed: bool) -> None:
    """With the run shown and one of the list: the source is asked for it, after the question where there is one."""
    source = StillSource(frame())
    app, acts = acting(source)
    run = line_of(source.current) if listed else source.current
    acts.begin(action, source, run, rank=2, steps=3, listed=listed)
    for screen, answer in app.pushed:
        if action == "kill":
            assert isinstance(screen, KillDialog)
            return
        assert source.asked == []
        answer(ANSWERS[action])
    work(app, acts)
    assert source.asked == [DONE[action]]
    assert len(app.told) == 1


def test_one_action_at_a_time() -> None:
    """While one is under way another is not begun, and the one under way is named, with its run where it is listed."""
    source = StillSource(frame())
    app, acts = acting(source)
    acts.begin("pause", source, line_of(source.current), listed=True)
    acts.begin("checkpoint", source, source.current)
    assert app.told == [("", f"pause of {source.current.run} is still under way")]
    work(app, acts)
    assert source.asked == ["pause"]
    acts.begin("checkpoint", source, source.current)
    work(app, acts)
    assert source.asked == ["pause", "checkpoint"]


@pytest.mark.parametrize(("unholdable", "shown"), [(False, True), (True, True), (True, False)])
def test_a_refusal_is_told_and_freezing_is_offered_for_the_run_shown(unholdable: bool, shown: bool) -> None:
    """The reason is told under the name of the action; what has no common step can be frozen, if it is in sight."""
    source = StillSource(frame())
    source.refusal, source.unholdable = "no common step", unholdable
    app, acts = acting(source)
    run = source.current if shown else line_of(frame())
    if not shown:
        source.current = frame(run="another")
    acts.begin("pause", source, run, listed=not shown)
    work(app, acts)
    if not (unholdable and shown):
        name = "pause" if shown else f"pause of {run.run}"
        assert (app.told, app.pushed) == ([(f"{name} refused", "no common step")], [])
        return
    ((_, answer),) = app.pushed
    source.refusal = None
    answer(FREEZE)
    work(app, acts)
    assert source.asked == ["pause", "freeze"]


def waiting_pause(source: StillSource) -> Callable[[Waiting | None], str]:
    """Return a pause that waits for rank 1 until it is cancelled; it is cancelled when it is asked the second time."""

    def pause(waiting: Waiting | None = None) -> str:
        assert waiting is not None
        source.asked.append("pause")
        waiting.tell("pausing: waiting for rank 1")
        if waiting.is_cancelled():
            raise Cancelled("cancelled; the run goes on")
        return "held at step 7"

    return pause


def test_a_pause_that_waits_is_shown_and_cancelled() -> None:
    """The frame of that run, and of no other, says whom it waits for; `cancel` ends it, and that is no refusal."""
    source = StillSource(frame("stalled"))
    source.pause = waiting_pause(source)  # type: ignore[method-assign]
    app, acts = acting(source)
    assert acts.marked(source.current).waiting == ""
    acts.begin("pause", source, source.current)
    turn = acts._under_way
    assert turn is not None
    turn.waiting.tell("pausing: waiting for rank 1")
    assert acts.marked(source.current).waiting == "pausing: waiting for rank 1"
    assert acts.marked(frame("stalled", run="another")).waiting == ""
    assert acts.marked(frame("killed")).waiting == ""
    acts.begin("checkpoint", source, source.current)
    assert app.told.pop() == ("", "pause is still under way: waiting for rank 1")
    acts.begin("cancel", source, source.current)
    assert acts.marked(source.current).waiting == "cancelling …"
    work(app, acts)
    assert app.told == [("pause", "cancelled; the run goes on")]
    assert source.asked == ["pause"]
    assert acts.marked(source.current).waiting == ""


def test_a_freeze_takes_the_place_of_a_pause_that_waits() -> None:
    """The pause is cancelled first; one that came to its end meanwhile stays, and nothing is frozen."""
    for held in (False, True):
        source = StillSource(frame("stalled"))
        source.pause = waiting_pause(source)  # type: ignore[method-assign]
        app, acts = acting(source)
        acts.begin("pause", source, source.current)
        turn = acts._under_way
        assert turn is not None
        acts.begin("freeze", source, source.current)
        if held:
            turn.waiting.is_cancelled = lambda: False  # type: ignore[method-assign]
        ((_, answer),) = app.pushed
        answer(FREEZE)
        work(app, acts)
        if held:
            assert (source.asked, app.told) == (["pause"], [("", "held at step 7")])
        else:
            work(app, acts)
            assert source.asked == ["pause", "freeze"]


@pytest.mark.parametrize(
    ("program", "remedy"),
    [
        (
            "toy.py",
            ["these lines in the script register one:", "import ddptop.agent", "ddptop.agent.on_checkpoint(save)"],
        ),
        ("resnet", ["restart it with: ddptop launch resnet -- --checkpoint-dir DIR"]),
    ],
)
def test_a_checkpoint_that_no_function_saves_tells_what_would(program: str, remedy: list[str]) -> None:
    """The two lines for a script of the user's, the option of a program that comes with ddptop."""
    source = StillSource(replace(frame(), program=program))
    app, acts = acting(source)

    def checkpoint(waiting: Waiting | None = None) -> str:
        raise Unsavable("no checkpoint function registered")

    source.checkpoint = checkpoint  # type: ignore[method-assign]
    acts.begin("checkpoint", source, source.current)
    work(app, acts)
    ((title, text),) = app.told
    assert title == "checkpoint"
    assert text.splitlines() == [f"no checkpoint function registered; {remedy[0]}", *remedy[1:]]


def test_who_acts_sees_the_effect() -> None:
    """A view that is held goes on as soon as something is done with the run."""
    source = StillSource(frame())
    shown = ShownRun(source, lambda: NOW)
    acts = Acting(cast(App[None], Recorded()), shown, 5.0)
    for action in ("pause", "kill"):
        shown.hold()
        assert shown.frame().view_held_s == 0.0
        acts.begin(action, source, source.current)
        assert shown.frame().view_held_s is None, action
