"""The list of a run's processes, from which one is chosen to be killed."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Static

from ddptop.tui.control.consent import ProcessLine
from ddptop.tui.drawing import units
from ddptop.tui.link.source import Control, Refused
from ddptop.tui.screens.dialogs.pickers.picker import ListPicker

_EVERY_S = 2.0


class ProcessMenu(ListPicker[ProcessLine]):
    """Lets the user choose one process of the run; returns it, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "Cancel", id="processes.cancel", tooltip="Close; no process is chosen"),
    ]
    LOOK = "-broad"
    HINT = "looking …"

    class Found(Message):
        """The processes, as they are now."""

        def __init__(self, lines: list[ProcessLine]) -> None:
            super().__init__()
            self.lines = lines

    def __init__(self, control: Control, run: str) -> None:
        super().__init__(f"Which process of {run}?")
        self._control = control
        self._lines: dict[str, ProcessLine] = {}
        """The processes by their identity."""

    def contents(self) -> ComposeResult:
        yield Static(Text(_HEAD, no_wrap=True), id="heads")
        yield from super().contents()

    def on_mount(self) -> None:
        """Look now and every other second."""
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
        self._lines = {_key(line): line for line in message.lines}
        # The mark stays with its process, never with its place.
        self.fill(self.marked)
        hint = "enter chooses it, {cancel} cancels" if self._lines else "no process of it is alive; {cancel} closes"
        self.query_one("#hint", Static).update(self.hint(hint))

    def rows(self, typed: str) -> dict[str, Text]:
        return {key: _row(line) for key, line in self._lines.items()}

    def choose(self, key: str) -> None:
        self.dismiss(self._lines.get(key))


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
