"""A question with a few answers, before an action that cannot be taken back or that has a price.

The questions themselves are here too, so that a price is worded in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Button, Static

from ddptop.tui.drawing import units
from ddptop.tui.link.fleet import RunLine
from ddptop.tui.screens.dialogs.dialog import Dialog

SAVE_AND_STOP: Final = "save"
STOP: Final = "stop"
FREEZE: Final = "freeze"
JOIN: Final = "join"
RESUME: Final = "resume"
ANEW: Final = "anew"
REMOVE: Final = "remove"
_CANCEL: Final = "cancel"


BUTTONS_HINT: Final = "{previous} {next} choose, {do} confirms, {cancel} cancels"


def button_keys(area: str, *others: BindingType) -> list[BindingType]:
    """Return the bindings of a dialog with buttons, `others` among them; the ids begin with `area`."""
    return [
        Binding("enter", "press", "Do it", id=f"{area}.do", tooltip="Do what the marked button says", show=False),
        *others,
        Binding("right,down", "app.focus_next", "Next", id=f"{area}.next", tooltip="Mark the next button", show=False),
        Binding(
            "left,up",
            "app.focus_previous",
            "Previous",
            id=f"{area}.previous",
            tooltip="Mark the button before",
            show=False,
        ),
    ]


class Question(Dialog[str | None]):
    """A question with a button for each answer. Returns the name of the answer, or None."""

    BINDINGS: ClassVar[list[BindingType]] = button_keys(
        "question", Binding("escape,q", "cancel", "Cancel", id="question.cancel", tooltip="Close; nothing is done")
    )

    def __init__(
        self, question: str, facts: Sequence[str], answers: Sequence[tuple[str, str]], *, harmless: bool = False
    ) -> None:
        """Prepare to ask.

        Args:
            question: one line.
            facts: what there is to know, a paragraph each.
            answers: each a name and what its button says. None of them is marked at first, but the button that
                cancels: no answer is given by a key too many.
            harmless: True where nothing can be lost by an answer.
        """
        super().__init__()
        self._harmless = harmless
        self._question = question
        self._facts = facts
        self._answers = answers

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog", classes="-harmless" if self._harmless else ""):
            yield Static(Content(self._question), id="question")
            for fact in self._facts:
                yield Static(Content(fact))
            with Horizontal(id="choices"):
                for name, label in ((_CANCEL, "Cancel"), *self._answers):
                    yield Button(Content(label), id=name)
            yield Static(self.hint(BUTTONS_HINT), id="hint")

    def on_mount(self) -> None:
        self.query_one(f"#{_CANCEL}").focus()

    def action_press(self) -> None:
        if isinstance(self.focused, Button):
            self.focused.press()

    def action_cancel(self) -> None:
        self.dismiss(None)

    @on(Button.Pressed)
    def _answer(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss(None if event.button.id == _CANCEL else event.button.id)


def about_stop(frame: RunLine, kill: str) -> Question:
    """Ask whether to stop a run, and whether to save before; `kill` is the key that ends one that hangs."""
    ranks = f"The {frame.world} ranks stop at the same step" if frame.world > 1 else "The rank stops at a step"
    order = f"{ranks} and exit with code 0."
    if frame.hangs:
        order = f"{frame.hangs}.\nThe run stops only once a step ends. To end it now, cancel this and press {kill}."
    unsaved = (STOP, "Stop without saving")
    if frame.checkpoints:
        saves = "Each saves a checkpoint first; if one cannot, nothing is stopped."
        return Question(f"Stop {frame.run}?", (order, saves), ((SAVE_AND_STOP, "Save and stop"), unsaved))
    lost = "No checkpoint function registered: the progress since the script's own last checkpoint is lost."
    return Question(f"Stop {frame.run}?", (order, lost), (unsaved,))


def about_freeze(run: str, left_s: float | None, reason: str, resume: str) -> Question:
    """Offer to stop the processes where they are, and say what that may cost.

    Args:
        run: its name.
        left_s: seconds after which a collective in progress may fail; None where that is not known.
        reason: why it cannot be paused; empty where nobody tried.
        resume: the key that undoes a freeze.
    """
    if left_s is None:
        when = "after its timeout, which is not known here"
    else:
        when = f"in {units.duration(left_s).strip()}" if left_s > 0 else "at any moment"
    countdown = "" if left_s is None else "A countdown is shown; "
    risk = (
        f"Sends SIGSTOP to all processes. The timeout of a collective in progress keeps running: "
        f"it may fail {when}. {countdown}{resume} resumes."
    )
    if not reason:
        return Question(f"Freeze {run}?", (risk,), ((FREEZE, "Freeze"),))
    return Question(f"Freeze {run} instead?", (reason, risk), ((FREEZE, "Freeze"),))


def about_joining(run: str, world: int, leave: str) -> Question:
    """Ask whether the agent is to join a job that nobody prepared; `leave` is the key that undoes it."""
    ranks = f"the {world} ranks, at the end of the same step" if world > 1 else "the rank, at the end of a step"
    facts = (
        f"Runs a script in the processes (Python 3.14 and newer), by which ddptop's agent joins {ranks}. It hooks "
        "torch; parameters stay the same to the bit, and for about a second steps may take longer.",
        f"Steps, loss, pause and diagnoses work from then on, steps counted from there. {leave} takes it out again.",
    )
    return Question(f"Join {run}?", facts, ((JOIN, "Join"),))


def about_removal(run: str) -> Question:
    """Ask whether an ended run is to be removed."""
    fact = "Its logs and records go with it, and do not come back."
    return Question(f"Remove {run}?", (fact,), ((REMOVE, "Remove"),))


def about_restart(run: str, *, resumable: bool) -> Question:
    """Ask whether an ended run is to be started again, and from where."""
    fact = "Starts a new run with the same settings; the old one stays, with its history."
    answers = [(RESUME, "Restart from checkpoint")] if resumable else []
    return Question(f"Restart {run}?", (fact,), [*answers, (ANEW, "Restart from step 0")], harmless=True)
