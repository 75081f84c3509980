"""Acting on runs: what is asked before, done in a thread, and told afterwards.

One action at a time, whether on the run shown or on one of the list. When an action is offered is said in
`control.actions`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from textual.app import App
from textual.message import Message
from textual.notifications import SeverityLevel

from ddptop.agent.client.acting.waiting import Waiting
from ddptop.agent.client.diagnosis.kinds import DIAGNOSES, first_ranks
from ddptop.agent.client.frame import Frame
from ddptop.tui.app.shown import ShownRun
from ddptop.tui.control.actions import Offers, to_save
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.link.fleet import RunLine, line_of
from ddptop.tui.link.source import Busy, Cancelled, Control, Hung, Refused, Unholdable, Unsavable
from ddptop.tui.model.sentences import can_be_joined
from ddptop.tui.screens.dialogs.question import (
    ANEW,
    FREEZE,
    JOIN,
    REMOVE,
    RESUME,
    SAVE_AND_STOP,
    STOP,
    about_freeze,
    about_joining,
    about_removal,
    about_restart,
    about_stop,
)
from ddptop.tui.screens.live import LiveScreen
from ddptop.tui.views.screen.events import EventList

if TYPE_CHECKING:
    from ddptop.agent.client.acting.kill import Killing
    from ddptop.tui.screens.dialogs.kill import KillDialog

_READ_S: Final = 4.0
"""Seconds for which it is shown why a key does nothing."""
Work = Callable[[], str]
"""What is done in a thread; returns what to tell, and raises `Refused`."""


class Acted(Message):
    """An action is over."""

    def __init__(self, text: str, refusal: Refused | None = None) -> None:
        super().__init__()
        self.text = text
        self.refusal = refusal
        """Why it was not done; None where it was."""


class Prepared(Message):
    """What a question needs to know has been found out; `ask` puts it."""

    def __init__(self, ask: Callable[[], object]) -> None:
        super().__init__()
        self.ask = ask


@dataclass
class _UnderWay:
    """An action that goes on in its thread."""

    name: str
    run: str
    waiting: Waiting | None
    """What it waits for; None where it waits for no rank, and so cannot be cancelled."""
    has_event: bool
    """True where an event of its run says that it was done."""
    then: Callable[[], None] | None = None
    """Shows a diagnosis, in place of a message, where its run is still shown and nobody types."""
    killed: bool = False
    """True where its run was killed meanwhile, so that it cannot be done any more."""
    freeze: Control | None = None
    """What is to freeze the run as soon as the action has been cancelled."""


class Acting:
    """Acts on runs for the app."""

    def __init__(self, app: App[None], shown: ShownRun) -> None:
        self._app = app
        self._shown = shown
        self._programs: dict[str, str] = {}
        """By name of a run that was acted on, its program."""
        self._under_way: _UnderWay | None = None
        self._killing: Killing | None = None
        """A kill that is under way; its dialog may be closed."""
        self._killed = ""
        """The run that it is of."""
        self._explained = "", 0.0
        """Why a key did nothing, as it was said last, and until when that is shown, by the monotonic clock."""
        self._preparing = False
        """True while it is found out what a question needs to know."""

    def begin(
        self,
        action: str,
        control: Control,
        run: Frame | RunLine,
        *,
        rank: int = 0,
        steps: int = 1,
        listed: bool = False,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Do an action of `control.actions`, after a question where it has a price.

        Args:
            action: its name.
            control: what acts on the run.
            run: what is known of the run.
            rank: the rank that a kill may be limited to.
            steps: how many steps to make from a pause.
            listed: True where it was asked for in the list, so that messages have to name the run.
            then: shows a diagnosis, once it is made, where its run is still shown and nobody types.
        """
        self._programs[run.run] = run.program
        name = f"{action} of {run.run}" if listed else action
        do = partial(self._do, name, run.run)
        waiting = Waiting()
        match action:
            case "pause":
                do(partial(control.pause, waiting), waiting)
            case "cancel":
                self._cancel(run.run, do, control)
            case "resume":
                do(control.resume)
            case "freeze":
                self._ask_to_freeze(control, run, "")
            case "join":
                question = about_joining(run.run, run.world, keys_of(self._app)["run.leave"])
                self._app.push_screen(question, partial(self._join, do, control, waiting))
            case "leave":
                do(partial(control.leave, waiting), waiting)
            case "step":
                do(partial(control.step, steps, waiting), waiting)
            case _ if (kind := DIAGNOSES.get(action)) is not None:
                ranks = first_ranks(run.world)
                work = partial(control.diagnose, action, waiting, steps=kind.steps or 1, ranks=ranks, culprit=True)
                do(work, waiting, then=then)
            case "checkpoint":
                do(partial(control.checkpoint, waiting), waiting)
            case "stop":
                line = run if isinstance(run, RunLine) else line_of(run)
                question = about_stop(line, keys_of(self._app)["runs.kill" if listed else "run.kill"])
                self._app.push_screen(question, partial(self._stop, do, control, waiting))
            case "kill":
                if not listed:
                    self._shown.let_go()
                from ddptop.tui.screens.dialogs.kill import KillDialog

                killing = self._killing if run.run == self._killed else None
                self._app.push_screen(KillDialog(control, run.run, rank, run.world, run.grace_s, killing))
            case "restart" if not self._preparing:
                self._preparing = True
                self._app.run_worker(partial(self._prepare_restart, run.run, do, control), thread=True)

    def explain(self, action: str, run: Frame | RunLine, name: str, *, read_only: bool) -> None:
        """Say why an action is not offered, but not again while that is still to be read.

        Args:
            action: its name.
            run: what is known of the run.
            name: the id of a binding on the key that was pressed.
            read_only: True where this dashboard offers no action.
        """
        keys = keys_of(self._app)
        reason = "this dashboard only looks on"
        if not read_only:
            offers = Offers.of(run) if isinstance(run, Frame) else run.offers
            reason = offers.why_not(action)
            if action == "join" and offers.has(action):
                reason = "joining takes Python 3.14 in every rank"
            if other := offers.remedy(action):
                place = name.partition(".")[0]
                reason += f"; {keys[f'{place}.{other}']} {other}s it"
            elif isinstance(run, Frame) and can_be_joined(run) and offers._replace(known_by="joined").has(action):
                reason += f"; {keys['run.join']} has one join them"
        text = f"{keys[name]} does nothing: {reason}"
        said, until = self._explained
        if said != text or time.monotonic() > until:
            self._explained = text, time.monotonic() + _READ_S
            self._app.notify(text, timeout=_READ_S, markup=False)

    def remove(self, run: RunLine, work: Work) -> None:
        """Have a run removed by `work`, after a question; one that has not ended stays, and that is told."""
        if run.over:
            self._app.push_screen(about_removal(run.run), partial(self._remove, run.run, work))
        else:
            kill = keys_of(self._app)["runs.kill"]
            text = f"{run.run} has not ended; {kill} kills it"
            self._app.notify(text, title="not removed", severity="warning", markup=False)

    def _remove(self, run: str, work: Work, answer: str | None) -> None:
        if answer == REMOVE:
            self._do(f"removal of {run}", run, work, has_event=False)

    @property
    def _line(self) -> str:
        """What the action that is under way waits for, empty where it waits for nothing."""
        waiting = None if self._under_way is None else self._under_way.waiting
        return "" if waiting is None else waiting.line

    def _stop(self, do: Callable[..., None], control: Control, waiting: Waiting, answer: str | None) -> None:
        if answer in (STOP, SAVE_AND_STOP):
            do(partial(control.stop, waiting, checkpoint=answer == SAVE_AND_STOP), waiting)

    def _join(self, do: Callable[..., None], control: Control, waiting: Waiting, answer: str | None) -> None:
        if answer == JOIN:
            do(partial(control.join, waiting), waiting)

    def _prepare_restart(self, run: str, do: Callable[..., None], control: Control) -> None:
        # The machine of the run is asked, which may be another one.
        try:
            question = about_restart(run, resumable=control.resumable())
            ask: Callable[[], object] = partial(self._app.push_screen, question, partial(self._restart, do, control))
        except Refused as reason:
            text = str(reason)
            ask = partial(self._app.notify, text, title="restart refused", severity="error", timeout=10, markup=False)
        self._app.post_message(Prepared(ask))

    def put(self, prepared: Prepared) -> None:
        """Put a question about which all is known now."""
        self._preparing = False
        prepared.ask()

    def _restart(self, do: Callable[..., None], control: Control, answer: str | None) -> None:
        if answer in (RESUME, ANEW):
            do(partial(control.restart, resume=answer == RESUME), has_event=False)

    def _cancel(self, run: str, do: Callable[..., None], control: Control) -> None:
        """Cancel the action that waits for the ranks of a run, whoever has begun it."""
        turn = self._under_way
        if turn is not None and turn.run == run and turn.waiting is not None:
            turn.waiting.cancel()
        else:
            do(control.resume)

    def _ask_to_freeze(self, control: Control, run: Frame | RunLine, reason: str) -> None:
        left_s = run.collective_left_s if isinstance(run, Frame) else None
        question = about_freeze(run.run, left_s, reason, keys_of(self._app)["run.resume"])
        self._app.push_screen(question, partial(self._freeze, control, run.run))

    def _freeze(self, control: Control, run: str, answer: str | None) -> None:
        if answer != FREEZE:
            return
        turn = self._under_way
        if turn is not None and turn.run == run and turn.waiting is not None:
            # What waits for ranks has to end first: frozen ranks would not answer it.
            turn.freeze = control
            turn.waiting.cancel()
        else:
            self._do("freeze", run, control.freeze)

    def _do(
        self,
        name: str,
        run: str,
        work: Work,
        waiting: Waiting | None = None,
        *,
        has_event: bool = True,
        then: Callable[[], None] | None = None,
    ) -> None:
        if self._under_way is not None:
            text = f"{self._under_way.name} is still under way"
            if self._line:
                text = f"{text}: {self._line.rpartition(': ')[2]}"
            self._app.notify(text, severity="warning", markup=False)
            return
        self._under_way = _UnderWay(name, run, waiting, has_event, then)
        self._shown.let_go()
        self._app.run_worker(partial(self._work, work), thread=True)

    def _work(self, work: Work) -> None:
        try:
            acted = Acted(work())
        except Refused as reason:
            acted = Acted(str(reason), reason)
        self._app.post_message(acted)

    def tell(self, acted: Acted) -> None:
        """Tell what came of an action; where the run cannot be paused, offer to freeze it."""
        assert self._under_way is not None
        turn, self._under_way = self._under_way, None
        shown = self._shown.newest().run == turn.run
        match acted.refusal:
            case None if turn.freeze is not None:
                # It was decided before it could be cancelled.
                text = f"not frozen: {acted.text}"
                self._app.notify(text, title="" if shown else turn.run, severity="warning", markup=False)
            case None if shown and turn.then is not None and not self._is_typing:
                turn.then()
            case None if turn.then is not None:
                self._app.notify(f"{turn.name} kept in {acted.text}", title="" if shown else turn.run, markup=False)
            case None if shown and turn.has_event and any(each.region for each in self._app.screen.query(EventList)):
                # The event that says the same stands on this screen.
                pass
            case None:
                self._app.notify(acted.text, title="" if shown else turn.run, markup=False)
            case Refused() if turn.killed:
                # The kill is what the user asked for last, and tells its own end.
                pass
            case Refused() if turn.freeze is not None:
                self._do("freeze", turn.run, turn.freeze.freeze)
            case Cancelled():
                self._app.notify(acted.text, title=turn.name, markup=False)
            case Unholdable() if shown and turn.waiting is not None and turn.waiting.line:
                # It has waited: whoever began it may be typing something else by now, which a dialog would take.
                offered = Offers.of(self._shown.newest())._replace(waiting=False).has("freeze")
                how = keys_of(self._app)["run.freeze"] if offered else f"`ddptop pause {turn.run} --freeze`"
                text = f"{acted.text}; {how} freezes it instead"
                self._app.notify(text, title=f"{turn.name} refused", severity="error", timeout=15, markup=False)
            case Unholdable() if shown:
                self._ask_to_freeze(self._shown.source.control, self._shown.newest(), acted.text)
            case Hung():
                keys = keys_of(self._app)
                text = f"{acted.text}; so it comes to no step: {keys['run.stacks']} stacks, {keys['run.kill']} kill"
                self._app.notify(text, title=f"{turn.name} refused", severity="error", timeout=10, markup=False)
            case Busy():
                text = f"{acted.text}; {keys_of(self._app)['run.resume']} cancels it"
                self._app.notify(text, title=f"{turn.name} refused", severity="error", timeout=10, markup=False)
            case Unsavable():
                what, *lines = to_save(self._programs.get(turn.run, ""))
                text = "\n".join((f"{acted.text}; {what}", *lines))
                self._app.notify(text, title=turn.name, severity="warning", timeout=15, markup=False)
            case _:
                self._app.notify(acted.text, title=f"{turn.name} refused", severity="error", timeout=10, markup=False)

    @property
    def _is_typing(self) -> bool:
        """True where a screen that opened now would take the keys that are meant for a dialog or a field."""
        screen = self._app.screen
        return screen.is_modal or (isinstance(screen, LiveScreen) and screen.is_typed_into)

    def look_after(self, begun: KillDialog.Begun) -> None:
        """Tell the end of a kill, should its dialog be closed before; what waits for the ranks ends with them."""
        if self._under_way is not None and self._under_way.run == begun.run:
            self._under_way.killed = True
        self._killing, self._killed = begun.killing, begun.run

    def tell_kill(self) -> None:
        """Tell the end of a kill whose dialog was closed, once."""
        if self._killing is None or not self._killing.over:
            return
        from ddptop.tui.screens.dialogs.kill import KillDialog

        if not isinstance(self._app.screen, KillDialog):
            severity: SeverityLevel = "information" if self._killing.done else "error"
            self._app.notify(self._killing.lines[-1], severity=severity, markup=False)
        self._killing = None
