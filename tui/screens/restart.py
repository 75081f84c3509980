"""The question before an ended run is started again."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static


class RestartDialog(ModalScreen["bool | None"]):
    """Asks how; returns True to go on from the checkpoint, False to begin anew, None to leave it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel", id="restart.cancel", tooltip="Close; nothing is started"),
        Binding("right,down", "app.focus_next", "Next", id="restart.next", tooltip="Mark the next button", show=False),
        Binding(
            "left,up",
            "app.focus_previous",
            "Previous",
            id="restart.previous",
            tooltip="Mark the button before",
            show=False,
        ),
    ]

    def __init__(self, run: str, resumable: bool) -> None:
        super().__init__()
        self._run = run
        self._resumable = resumable

    def compose(self) -> ComposeResult:
        """Lay out the question."""
        with Vertical(id="dialog", classes="-harmless"):
            yield Static(f"Start {self._run} again?", id="question", markup=False)
            yield Static("A new run with the same settings; the old one stays, with its history.", markup=False)
            with Horizontal(id="choices"):
                if self._resumable:
                    yield Button(Content("From its checkpoint"), id="resume")
                yield Button(Content("From the beginning"), id="anew")
                yield Button(Content("Cancel"), id="cancel")
            yield Static("Enter does it, Escape cancels, arrows choose", id="hint", markup=False)

    def on_mount(self) -> None:
        """Mark the first button."""
        self.query(Button).first().focus()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss({"resume": True, "anew": False}.get(event.button.id or ""))
