"""A line of a form: what it asks, where it is filled in, and beside it the help or what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.events import Compose, Event, Unmount
from textual.message import Message
from textual.widgets import Input, Label, Select

from ddptop.agent.text import clean


class Choice(Select[str], inherit_bindings=False):
    """One of a few; the arrows and enter are left to the form."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "show_overlay", "Choose", id="form.choose", tooltip="Open the choices", show=False)
    ]

    async def on_event(self, event: Event) -> None:
        """Handle events where its parts are there: the form may be left before they come, and it would miss them."""
        if self.children or isinstance(event, Compose | Unmount):
            await super().on_event(event)


class Field(Horizontal):
    """One text, or one of a few choices."""

    class Changed(Message):
        """It says something else now."""

        def __init__(self, field: Field) -> None:
            super().__init__()
            self.field = field

    def __init__(
        self,
        key: str,
        title: str,
        help: str,
        value: str = "",
        *,
        usual: str = "",
        choices: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Prepare a field.

        Args:
            key: by which the form knows it.
            title: what stands before it.
            help: what it is for.
            value: what it says at first.
            usual: what it means when it is left empty.
            choices: text and value of each, where it is one of a few.
        """
        super().__init__()
        self.key = key
        self.help = clean(help, 400)
        self.title = clean(title, 60)
        """The label before it, by which messages call it, too."""
        self._usual = clean(usual, 60)
        self._choices = choices
        self.value = value

    def compose(self) -> ComposeResult:
        """Title, what is filled in, and a note."""
        yield Label(Content(self.title), classes="title")
        if self._choices:
            known = [value for _, value in self._choices]
            yield Choice(
                [(Content(text), value) for text, value in self._choices],
                value=self.value if self.value in known else known[0],
                allow_blank=False,
                compact=True,
            )
        else:
            yield Input(self.value, placeholder=self._usual, compact=True, select_on_focus=False)
        yield Label(Content(self.help), classes="note")

    def complain(self, problem: str | None) -> None:
        """Say what is wrong with it, None where nothing is."""
        note = self.query_one(".note", Label)
        note.set_class(problem is not None, "-wrong")
        note.update(Content(clean(problem or self.help, 400)))

    def fill(self, value: str) -> None:
        """Put a text into it, or make a choice."""
        if self._choices:
            self.query_one(Choice).value = value
        else:
            self.query_one(Input).value = value

    @property
    def current(self) -> str:
        """Return what stands there now; `value` and `Changed` have it a moment later."""
        return str((self.query_one(Choice) if self._choices else self.query_one(Input)).value)

    def enter(self) -> None:
        """Give it the focus."""
        self.query("Input, Choice").first().focus()

    @on(Input.Changed)
    @on(Select.Changed)
    def _changed(self, event: Input.Changed | Select.Changed) -> None:
        event.stop()
        value = str(event.value)
        if value != self.value:
            self.value = value
            self.post_message(self.Changed(self))
