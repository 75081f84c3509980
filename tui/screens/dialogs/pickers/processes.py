"""The list of a run's processes, from which one is chosen to be ended."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from ddptop.tui.control.consent import ProcessLine
from ddptop.tui.drawing import units
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.link.source import Control, Refused
from ddptop.tui.screens.dialogs.dialog import Dialog

_EVERY_S = 2.0


class ProcessMenu(Dialog["ProcessLine | None"]):
    """Lets the user choose one process of the run; returns it, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel", id="processes.cancel", tooltip="Close; no process is chosen"),
    ]

    class Found(Message):
        """The processes, as they are now."""

        def __init__(self, lines: list[ProcessLine]) -> None:
            super().__init__()
            self.lines = lines

    def __init__(self, control: Control, run: str) -> None:
        super().__init__()
        self._control = control
        self._run = run
        self._lines: dict[str, ProcessLine] = {}

    def compose(self) -> ComposeResult:
        """Lay out heads and list."""
        with Vertical(id="dialog", classes="-broad"):
            yield Static(f"Which process of {self._run}?", id="question", markup=False)
            yield Static(Text(_HEAD, no_wrap=True), id="heads")
            yield OptionList(id="list")
            yield Static("looking …", id="hint", markup=False)

    def on_mount(self) -> None:
        """Look now and every other second."""
        self.query_one(OptionList).focus()
        self._look()
        self.set_interval(_EVERY_S, self._look)

    def _look(self) -> None:
        self.run_worker(self._find, thread=True, exclusive=True)

    def _find(self) -> None:
        try:
            found = self._control.processes()
        except Refused:
            found = []
        self.post_message(self.Found(found))

    @on(Found)
    def _show(self, message: Found) -> None:
        listing = self.query_one(OptionList)
        marked = None
        if listing.highlighted is not None:
            marked = listing.get_option_at_index(listing.highlighted).id
        self._lines = {_key(line): line for line in message.lines}
        listing.clear_options()
        listing.add_options([Option(_row(line), id=key) for key, line in self._lines.items()])
        keys = list(self._lines)
        # The mark stays with its process, never with its place.
        listing.highlighted = keys.index(marked) if marked in self._lines else 0 if keys else None
        cancel = keys_of(self)["processes.cancel"]
        hint = f"enter chooses it, {cancel} cancels" if keys else f"no process of it is alive; {cancel} closes"
        self.query_one("#hint", Static).update(Content(hint))

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._lines.get(event.option_id or ""))

    def action_cancel(self) -> None:
        """Close."""
        self.dismiss(None)


_HEAD = f"{'PID':>8}  {'ROLE':<11} {'RANK':>4}  {'STATE':<10} {'AGE':>7}  {'CPU':>5}  {'MEMORY':>8}  COMMAND"


def _key(line: ProcessLine) -> str:
    return f"{line.process.pid}-{line.process.started}"


def _row(line: ProcessLine) -> Text:
    rank = units.DASH if line.rank is None else str(line.rank)
    cpu = units.DASH if line.cpu_percent is None else f"{line.cpu_percent:.0f}%"
    return Text(
        f"{line.process.pid:>8}  {line.role:<11} {rank:>4}  {line.status:<10} {units.duration(line.age_s).strip():>7}  "
        f"{cpu:>5}  {units.size(line.memory_bytes).strip():>8}  {line.command}",
        no_wrap=True,
        overflow="ellipsis",
    )
