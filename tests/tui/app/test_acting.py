"""Acting on runs, without a terminal: what is asked before, done in a thread, and told afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from msgspec.structs import replace
from support.screens.dashboards import KEYS
from support.screens.frames import NOW, StillSource, frame, rank_frame
from textual.app import App
from textual.message import Message
from textual.screen import Screen

from ddptop.agent.client.acting.kill import Killing
from ddptop.agent.client.acting.waiting import Waiting
from ddptop.tui.app.acting import Acted, Acting, Prepared
from ddptop.tui.app.shown import ShownRun
from ddptop.tui.control.actions import RULES
from ddptop.tui.link.fleet import line_of
from ddptop.tui.link.source import Busy, Cancelled, Hung, Refused, Unholdable, Unsavable
from ddptop.tui.screens.dialogs.kill import KillDialog
from ddptop.tui.screens.dialogs.question import FREEZE, JOIN, RESUME, SAVE_AND_STOP, Question

ANSWERS = {"join": JOIN, "stop": SAVE_AND_STOP, "restart": RESUME, "freeze": FREEZE}
"""What the user says where there is a question before."""
DONE = {
    "join": "join",
    "leave": "leave",
    "pause": "pause",
    "resume": "resume",
    "cancel": "resume",
    "freeze": "freeze",
    "step": "step 3",
    "checkpoint": "checkpoint",
    "profile": "profile 3 (0, 1, 2, 3) True",
    "memory": "memory 3 (0, 1, 2, 3) True",
    "probe": "probe 1 (0, 1, 2, 3) True",
    "stop": "stop True",
    "restart": "restart True",
}
"""What the source is asked for."""


class Recorded:
    """In place of the app: works when it is told to, and notes what is shown."""

    key_names = KEYS
    screen: Screen[Any] = Screen()

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
    return app, Acting(cast(App[None], app), ShownRun(source, lambda: NOW))


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
    if action == "restart":
        # What the question needs to know is asked in a thread.
        app.works.pop()()
        prepared = app.posted.pop()
        assert isinstance(prepared, Prepared)
        acts.put(prepared)
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


def test_a_run_that_hangs_is_not_offered_to_be_frozen() -> None:
    """The keys that help are told."""
    source = StillSource(frame("stalled"))

    def pause(waiting: Waiting | None = None) -> str:
        raise Hung("rank 1 hangs: it sleeps")

    source.pause = pause  # type: ignore[method-assign]
    app, acts = acting(source)
    acts.begin("pause", source, source.current)
    work(app, acts)
    told = f"rank 1 hangs: it sleeps; so it comes to no step: {KEYS['run.stacks']} stacks, {KEYS['run.kill']} kill"
    assert (app.told, app.pushed) == ([("pause refused", told)], [])


@pytest.mark.parametrize("state", ["stalled", "running"])
def test_a_dialog_that_nobody_expects_any_more_does_not_open(state: str) -> None:
    """A pause that is refused after a wait does not take the keys that are being typed; how to freeze is told."""
    source = StillSource(frame(state))

    def pause(waiting: Waiting | None = None) -> str:
        assert waiting is not None
        waiting.tell("pausing: waiting for rank 1")
        raise Unholdable("rank 1 did not finish step 9")

    source.pause = pause  # type: ignore[method-assign]
    app, acts = acting(source)
    acts.begin("pause", source, source.current)
    work(app, acts)
    freeze = KEYS["run.freeze"] if state == "stalled" else f"`ddptop pause {source.current.run} --freeze`"
    told = f"rank 1 did not finish step 9; {freeze} freezes it instead"
    assert (app.told, app.pushed) == ([("pause refused", told)], [])


def test_a_run_that_is_busy_is_not_offered_to_be_frozen() -> None:
    """In the first moment of another one's checkpoint no rank is awaited; the key that cancels it is told."""
    source = StillSource(frame())

    def pause(waiting: Waiting | None = None) -> str:
        raise Busy("checkpoint by ada (shell, pts/1) is under way for 0 s")

    source.pause = pause  # type: ignore[method-assign]
    app, acts = acting(source)
    acts.begin("pause", source, source.current)
    work(app, acts)
    told = "checkpoint by ada (shell, pts/1) is under way for 0 s; space cancels it"
    assert (app.told, app.pushed) == ([("pause refused", told)], [])


def waiting_pause(source: StillSource) -> Callable[[Waiting | None], str]:
    """Return a pause that tells of a wait for rank 1, and ends: cancelled where it was cancelled by then, else held."""

    def pause(waiting: Waiting | None = None) -> str:
        assert waiting is not None
        source.asked.append("pause")
        waiting.tell("pausing: waiting for rank 1")
        if waiting.is_cancelled():
            raise Cancelled("cancelled; the run goes on")
        return "held at step 7"

    return pause


def test_a_pause_that_waits_is_shown_and_cancelled() -> None:
    """A second action is told for whom it waits; `cancel` ends it, and that is no refusal."""
    source = StillSource(frame("stalled"))
    source.pause = waiting_pause(source)  # type: ignore[assignment, method-assign]
    app, acts = acting(source)
    acts.begin("pause", source, source.current)
    turn = acts._under_way
    assert turn is not None
    assert turn.waiting is not None
    turn.waiting.tell("pausing: waiting for rank 1")
    acts.begin("checkpoint", source, source.current)
    assert app.told.pop() == ("", "pause is still under way: waiting for rank 1")
    acts.begin("cancel", source, source.current)
    assert turn.waiting.is_cancelled()
    work(app, acts)
    assert app.told == [("pause", "cancelled; the run goes on")]
    assert source.asked == ["pause"]


def test_a_step_is_cancelled_as_a_pause_is_and_a_resume_is_not() -> None:
    """What waits for no rank says that it is under way, whether it is to be cancelled or a freeze to take its place."""
    source = StillSource(frame("pausing"))
    app, acts = acting(source)
    acts.begin("step", source, source.current, steps=3)
    turn = acts._under_way
    assert turn is not None
    assert turn.waiting is not None
    acts.begin("cancel", source, source.current)
    assert turn.waiting.is_cancelled()
    work(app, acts)
    app.told.clear()
    acts.begin("resume", source, source.current)
    acts.begin("cancel", source, source.current)
    acts.begin("freeze", source, source.current)
    ((_, answer),) = app.pushed
    answer(FREEZE)
    assert app.told == [("", "resume is still under way")] * 2
    work(app, acts)
    assert source.asked == ["step 3", "resume"]


def test_what_waits_no_more_is_not_said_to_wait() -> None:
    """As soon as the ranks are held and save, a second action is told of no rank."""
    source = StillSource(frame("paused"))
    app, acts = acting(source)
    acts.begin("checkpoint", source, source.current)
    turn = acts._under_way
    assert turn is not None
    assert turn.waiting is not None
    turn.waiting.tell("checkpoint: waiting for rank 1")
    turn.waiting.tell("")
    acts.begin("pause", source, source.current)
    assert app.told == [("", "checkpoint is still under way")]


def test_a_listed_run_is_named_in_the_question_about_its_freeze() -> None:
    """And not the run that is shown."""
    source = StillSource(frame())
    app, acts = acting(source)
    acts.begin("freeze", source, line_of(frame("stalled", run="another")), listed=True)
    ((question, answer),) = app.pushed
    assert isinstance(question, Question)
    assert question._question == "Freeze another?"
    answer(FREEZE)
    work(app, acts)
    assert source.asked == ["freeze"]


def test_a_freeze_takes_the_place_of_a_pause_that_waits() -> None:
    """The pause is cancelled first; one that came to its end meanwhile stays, and it is told that nothing is frozen."""
    for held in (False, True):
        source = StillSource(frame("stalled"))
        source.pause = waiting_pause(source)  # type: ignore[assignment, method-assign]
        app, acts = acting(source)
        acts.begin("pause", source, source.current)
        turn = acts._under_way
        assert turn is not None
        acts.begin("freeze", source, source.current)
        if held:
            assert turn.waiting is not None
            turn.waiting.is_cancelled = lambda: False  # type: ignore[method-assign]
        ((_, answer),) = app.pushed
        answer(FREEZE)
        work(app, acts)
        if held:
            assert (source.asked, app.told) == (["pause"], [("", "not frozen: held at step 7")])
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
    acts = Acting(cast(App[None], Recorded()), shown)
    for action in ("pause", "kill"):
        shown.hold()
        assert shown.frame().view_held_s == 0.0
        acts.begin(action, source, source.current)
        assert shown.frame().view_held_s is None, action


def test_a_held_view_stays_as_it_was() -> None:
    """A rank's screen that is opened later is of the moment at which the view was held."""
    source = StillSource(frame(ranks=(rank_frame(step=1),)))
    shown = ShownRun(source, lambda: NOW)
    shown.hold()
    source.current = frame(ranks=(rank_frame(step=3),))
    assert shown.frame().ranks[0].step == 1
    shown.hold()
    assert shown.frame().ranks[0].step == 3


def test_a_kill_ends_what_waits_without_a_refusal() -> None:
    """A stop that waits for ranks which are then killed is not told to have failed: the kill tells its own end."""
    for killed in ("", "another", "resnet-7f3a"):
        source = StillSource(frame("stalled"))
        source.refusal = "every rank has ended meanwhile"
        app, acts = acting(source)
        acts.begin("stop", source, source.current)
        app.pushed.pop()[1](SAVE_AND_STOP)
        if killed:
            acts.look_after(KillDialog.Begun(Killing(lambda progress, consent: "", killed), killed))
        work(app, acts)
        told = [] if killed == source.current.run else [("stop refused", source.refusal)]
        assert app.told == told
        assert acts._under_way is None


def test_a_restart_that_cannot_be_prepared_is_refused() -> None:
    """The connection to the machine of the run may end while it is asked; the next attempt asks anew."""
    source = StillSource(frame("failed"))

    def lost() -> bool:
        raise Refused("node1: the connection ended")

    source.resumable = lost  # type: ignore[method-assign]
    app, acts = acting(source)
    for _ in range(2):
        acts.begin("restart", source, source.current)
        acts.begin("restart", source, source.current)
        (asked,) = app.works
        asked()
        app.works.clear()
        prepared = app.posted.pop()
        assert isinstance(prepared, Prepared)
        acts.put(prepared)
    assert app.pushed == []
    assert app.told == [("restart refused", "node1: the connection ended")] * 2
