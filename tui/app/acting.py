"""Acting on runs: what is asked before, done in a thread, and told afterwards.

One action at a time, whether on the run shown or on one of the list. When an action is offered is said in
`control.actions`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from textual.app import App
from textual.message import Message
from textual.notifications import SeverityLevel

from ddptop.tui.app.shown import ShownRun
from ddptop.tui.control.kill import Killing
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.link.fleet import RunLine
from ddptop.tui.link.source import Control, Refused, Unholdable
from ddptop.tui.model.frame import Frame
from ddptop.tui.screens.dialogs.kill import KillDialog
from ddptop.tui.screens.dialogs.question import (
    ANEW,
    FREEZE,
    RESUME,
    SAVE_AND_STOP,
    STOP,
    about_freeze,
    about_restart,
    about_stop,
)

Work = Callable[[], str]
"""What is done in a thread; returns what to tell, and raises `Refused`."""


class Acted(Message):
    """An action is over."""

    def __init__(self, text: str, *, done: bool, unholdable: bool = False) -> None:
        super().__init__()
        self.text = text
        self.done = done
        self.unholdable = unholdable
        """True where the group has no common step, so that freezing it is all that is left."""


class Acting:
    """Acts on runs for the app."""

    def __init__(self, app: App[None], shown: ShownRun, grace_s: float) -> None:
        self._app = app
        self._shown = shown
        self._grace_s = grace_s
        self._under_way: tuple[str, str] | None = None
        """What is being done, and the run that it is done with."""
        self._killing: Killing | None = None
        """A kill that is under way; its dialog may be closed."""
        self._killed = ""
        """The run that it is of."""

    def begin(
        self,
        action: str,
        control: Control,
        run: Frame | RunLine,
        *,
        rank: int = 0,
        steps: int = 1,
        listed: bool = False,
    ) -> None:
        """Do an action of `control.actions`, after a question where it has a price.

        Args:
            action: its name.
            control: what acts on the run.
            run: what is known of the run.
            rank: the rank that a kill may be limited to.
            steps: how many steps to make from a pause.
            listed: True where it was asked for in the list, so that messages have to name the run.
        """
        name = f"{action} of {run.run}" if listed else action
        do = partial(self._do, name, run.run)
        match action:
            case "pause":
                do(control.pause)
            case "resume":
                do(control.resume)
            case "step":
                do(partial(control.step, steps))
            case "checkpoint":
                do(control.checkpoint)
            case "stop":
                self._app.push_screen(about_stop(run), partial(self._stop, do, control))
            case "kill":
                if not listed:
                    self._shown.let_go()
                killing = self._killing if run.run == self._killed else None
                self._app.push_screen(KillDialog(control, run.run, rank, run.world, self._grace_s, killing))
            case "restart":
                question = about_restart(run.run, resumable=control.resumable())
                self._app.push_screen(question, partial(self._restart, do, control))

    def _stop(self, do: Callable[[Work], None], control: Control, answer: str | None) -> None:
        if answer in (STOP, SAVE_AND_STOP):
            do(partial(control.stop, checkpoint=answer == SAVE_AND_STOP))

    def _restart(self, do: Callable[[Work], None], control: Control, answer: str | None) -> None:
        if answer in (RESUME, ANEW):
            do(partial(control.restart, resume=answer == RESUME))

    def _freeze(self, answer: str | None) -> None:
        if answer == FREEZE:
            self._do("freeze", self._shown.newest().run, self._shown.source.control.freeze)

    def _do(self, name: str, run: str, work: Work) -> None:
        if self._under_way is not None:
            self._app.notify(f"{self._under_way[0]} is still under way", severity="warning", markup=False)
            return
        self._under_way = name, run
        self._shown.let_go()
        self._app.run_worker(partial(self._work, work), thread=True)

    def _work(self, work: Work) -> None:
        try:
            text = work()
        except Refused as reason:
            self._app.post_message(Acted(str(reason), done=False, unholdable=isinstance(reason, Unholdable)))
        else:
            self._app.post_message(Acted(text, done=True))

    def tell(self, acted: Acted) -> None:
        """Tell what came of an action; where the run cannot be paused, offer to freeze it."""
        assert self._under_way is not None
        (name, run), self._under_way = self._under_way, None
        shown = self._shown.newest()
        if acted.done:
            self._app.notify(acted.text, title="" if run == shown.run else run, markup=False)
        elif acted.unholdable and run == shown.run:
            self._app.push_screen(about_freeze(shown, acted.text, keys_of(self._app)["run.resume"]), self._freeze)
        else:
            self._app.notify(acted.text, title=f"{name} refused", severity="error", timeout=10, markup=False)

    def look_after(self, begun: KillDialog.Begun) -> None:
        """Tell the end of a kill, should its dialog be closed before."""
        self._killing, self._killed = begun.killing, begun.run

    def tell_kill(self) -> None:
        """Tell the end of a kill whose dialog was closed, once."""
        if self._killing is None or not self._killing.over:
            return
        if not isinstance(self._app.screen, KillDialog):
            severity: SeverityLevel = "information" if self._killing.done else "error"
            self._app.notify(self._killing.lines[-1], severity=severity, markup=False)
        self._killing = None
