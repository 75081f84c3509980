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
from ddptop.tui.model.frame import Frame
from ddptop.tui.screens.dialogs.dialog import Dialog

SAVE_AND_STOP: Final = "save"
STOP: Final = "stop"
FREEZE: Final = "freeze"
RESUME: Final = "resume"
ANEW: Final = "anew"
_CANCEL: Final = "cancel"


BUTTONS_HINT: Final = "{do} confirms, {cancel} cancels, {previous} {next} choose"


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
        "question", Binding("escape", "cancel", "Cancel", id="question.cancel", tooltip="Close; nothing is done")
    )

    def __init__(
        self, question: str, facts: Sequence[str], answers: Sequence[tuple[str, str]], *, harmless: bool = False
    ) -> None:
        """Prepare to ask.

        Args:
            question: one line.
            facts: what there is to know, a paragraph each.
            answers: each a name and what its button says; the first one is marked.
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
                for name, label in (*self._answers, (_CANCEL, "Cancel")):
                    yield Button(Content(label), id=name)
            yield Static(self.hint(BUTTONS_HINT), id="hint")

    def on_mount(self) -> None:
        self.query(Button).first().focus()

    def action_press(self) -> None:
        if isinstance(self.focused, Button):
            self.focused.press()

    def action_cancel(self) -> None:
        self.dismiss(None)

    @on(Button.Pressed)
    def _answer(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss(None if event.button.id == _CANCEL else event.button.id)


def about_stop(frame: Frame | RunLine) -> Question:
    """Ask how to end a run in good order."""
    ranks = f"All {frame.world} ranks end at the same step" if frame.world > 1 else "The rank ends at a step"
    order = f"{ranks}, in good order, with exit code 0."
    if frame.checkpoints:
        saves = "First each saves a checkpoint; if one cannot, nothing is ended."
        return Question(f"Stop {frame.run}?", (order, saves), ((SAVE_AND_STOP, "Save and end"), (STOP, "End unsaved")))
    lost = "Its script has told no way to save a checkpoint: what it learned since its own last one is lost."
    return Question(f"Stop {frame.run}?", (order, lost), ((STOP, "End unsaved"),))


def about_freeze(frame: Frame, reason: str, resume: str) -> Question:
    """Offer to stop the processes where they are, and tell what that may cost; `resume` is the key that undoes it."""
    limit = (
        "its timeout, which is not known here," if frame.timeout_s is None else units.duration(frame.timeout_s).strip()
    )
    risk = (
        f"Freezing stops all processes where they stand (SIGSTOP). A collective under way goes on to count: "
        f"frozen for longer than {limit}, the run may fail. A countdown is shown; {resume} lets it go on."
    )
    return Question(f"Freeze {frame.run} instead?", (reason, risk), ((FREEZE, "Freeze"),))


def about_restart(run: str, *, resumable: bool) -> Question:
    """Ask how an ended run is to be started again."""
    fact = "A new run with the same settings; the old one stays, with its history."
    answers = [(RESUME, "From its checkpoint")] if resumable else []
    return Question(f"Start {run} again?", (fact,), [*answers, (ANEW, "From the beginning")], harmless=True)
