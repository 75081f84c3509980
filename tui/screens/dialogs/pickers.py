"""The base of the dialogs in which one entry of several is chosen.

A picker says what it offers and what a choice means.  The box, the field that filters, the mark and how the arrows
move it are here; the keys' ids and tooltips are each picker's own.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from rich.text import Text, TextType
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import ScreenResultType
from textual.widgets import DirectoryTree, Input, OptionList, Static
from textual.widgets.option_list import Option

from ddptop.agent.client.acting.membership import ProcessLine
from ddptop.agent.text import clean
from ddptop.agent.wire.steps.numbers import CUSTOM
from ddptop.tui.control import signals
from ddptop.tui.drawing import units
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.link.source import Control, Refused
from ddptop.tui.model.metrics import Metric
from ddptop.tui.screens.dialogs.dialog import Dialog
from ddptop.tui.views.table.columns import Column


class Picker(Dialog[ScreenResultType]):
    """A box with a title, something to choose from, and a hint. Returns the choice, or None."""

    LOOK: ClassVar[str] = ""
    """The class of the box in the style sheet; in one that is `-framed`, title and hint stand in the border."""
    HINT: ClassVar[str]
    """The line about the keys, as `Dialog.hint` takes it."""

    def __init__(self, heading: str) -> None:
        super().__init__()
        self._heading = heading

    @abstractmethod
    def contents(self) -> ComposeResult:
        """Yield the widgets between title and hint."""

    def compose(self) -> ComposeResult:
        heading, hint = Content(self._heading), self.hint(self.HINT)
        with Vertical(id="dialog", classes=self.LOOK) as box:
            if self.LOOK == "-framed":
                box.border_title, box.border_subtitle = heading, hint
                yield from self.contents()
            else:
                yield Static(heading, id="question")
                yield from self.contents()
                yield Static(hint, id="hint")

    def action_close(self) -> None:
        self.dismiss(None)


class ListPicker(Picker[ScreenResultType]):
    """Offers rows in a list, of which one is marked; what is typed filters them, where there is a field for it."""

    FILTER: ClassVar[str | None] = None
    """The text of the empty field; None for no field."""
    PRESELECTS: ClassVar[bool] = True
    """False where a row is marked only once something was typed or the mark was moved: a choice has an effect."""

    @abstractmethod
    def rows(self, typed: str) -> dict[str, Text]:
        """Return the rows that fit what is typed, each by a key of its own."""

    @abstractmethod
    def choose(self, key: str) -> None:
        """Do what the choice of a row means."""

    def contents(self) -> ComposeResult:
        """Yield the field, where there is one, and the list."""
        if self.FILTER is not None:
            yield Input(placeholder=self.FILTER, id="filter", compact=True)
        listing = OptionList(id="list", markup=False)
        # Beside a field it has no keys: those that move the mark are the dialog's own.
        listing.can_focus = self.FILTER is None
        yield listing

    def on_mount(self) -> None:
        """Fill the list, and give the keys to the field, where there is one."""
        self.query("#filter, #list").first().focus()
        self.fill(self.marked)

    @property
    def marked(self) -> str | None:
        """The key of the marked row, None where there is no row."""
        option = self.query_one(OptionList).highlighted_option
        return None if option is None else option.id

    def fill(self, mark: str | None = None, typed: str = "") -> None:
        """Offer the rows that there are now, and mark the one of this key, else the first."""
        listing = self.query_one(OptionList)
        rows = self.rows(typed)
        if [option.id for option in listing.options] == list(rows):
            # In place, so that the list stays where it was scrolled to.
            for key, row in rows.items():
                listing.replace_option_prompt(key, row)
        else:
            listing.clear_options()
            listing.add_options([Option(row, id=key) for key, row in rows.items()])
        unmarked = not rows or (mark is None and not typed and not self.PRESELECTS)
        listing.highlighted = None if unmarked else list(rows).index(mark) if mark in rows else 0

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        self.fill(typed=event.value)

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        self.choose(event.option_id or "")

    def action_move(self, by: int) -> None:
        """Mark a row further on; the first follows on the last."""
        listing = self.query_one(OptionList)
        if listing.option_count:
            # Before the first row where none is marked; above that is the last one.
            now = listing.highlighted if listing.highlighted is not None else min(-by, 0)
            listing.highlighted = (now + by) % listing.option_count

    def action_choose(self) -> None:
        if self.ignores_enter():
            return
        if (key := self.marked) is not None:
            self.choose(key)


class ColumnsDialog(ListPicker[frozenset[str]]):
    """A box to tick for each column. Returns the keys of the ticked columns."""

    DECIDES = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "choose", "Tick", id="columns.tick", tooltip="Show this column, or no longer"),
        Binding("u", "usual", "Usual", id="columns.usual", tooltip="Tick the usual columns"),
        Binding("escape,C,q", "close", "Done", id="columns.close", tooltip="Return to the table with these columns"),
    ]
    LOOK = "-framed"
    HINT = "{tick} ticks · {usual} the usual ones · {close} shows them"

    def __init__(self, columns: Iterable[Column], ticked: Iterable[str], shown: Iterable[str]) -> None:
        """Offer `columns`; `shown` are the keys of those that there is room for now."""
        super().__init__("columns")
        self._columns = tuple(columns)
        self._ticked = set(ticked)
        self._no_room = self._ticked - set(shown)

    def rows(self, typed: str) -> dict[str, Text]:
        return {column.key: self._row(column) for column in self._columns}

    def _row(self, column: Column) -> Text:
        box = "[✓]" if column.key in self._ticked else "[ ]"
        aside = " · no room now" if column.key in self._no_room else ""
        return Text(
            f"{box} {column.title.strip() or 'mark':<9} {column.meaning}{aside}", no_wrap=True, overflow="ellipsis"
        )

    def choose(self, key: str) -> None:
        """Tick a column, or take its tick away."""
        self._ticked ^= {key}
        self.fill(key)

    def action_usual(self) -> None:
        self._ticked = {column.key for column in self._columns if column.usual}
        self.fill(self.marked)

    def action_close(self) -> None:
        self.dismiss(frozenset(self._ticked))


class MetricPicker(ListPicker[str]):
    """A list of metrics, filtered by what is typed. Returns the name of the chosen one, or None."""

    DECIDES = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", id="metrics.up", tooltip="The metric above", show=False),
        Binding("down", "move(1)", "Down", id="metrics.down", tooltip="The metric below", show=False),
        Binding("enter", "choose", "Take", id="metrics.take", tooltip="Plot this metric", priority=True),
        Binding("escape", "close", "Close", id="metrics.close", tooltip="Leave the plot as it is"),
    ]
    LOOK = "-framed"
    HINT = "{take} takes · {close} closes"
    FILTER = "type to filter"

    def __init__(self, metrics: Sequence[Metric], now: str) -> None:
        """Offer `metrics`; the one of name `now` is marked at first."""
        super().__init__("plot")
        self._metrics = metrics
        self._now = now

    def on_mount(self) -> None:
        """Mark the metric that the plot shows."""
        self.fill(self._now)

    def rows(self, typed: str) -> dict[str, Text]:
        """Return the metrics whose titles hold all words that are typed."""
        words = typed.casefold().split()
        fitting = (metric for metric in self._metrics if all(word in metric.title.casefold() for word in words))
        logged = {metric.title for metric in self._metrics if metric.name.startswith(CUSTOM)}
        return {metric.name: _metric_row(metric, logged) for metric in fitting}

    def choose(self, key: str) -> None:
        self.dismiss(key)


def _metric_row(metric: Metric, logged: Collection[str]) -> Text:
    row = Text(metric.title, no_wrap=True, overflow="ellipsis")
    if metric.unit:
        row.append(f", {metric.unit}", "dim")
    if metric.name.startswith(CUSTOM):
        row.append("  logged by the script", "dim")
    elif metric.title in logged:
        row.append("  read by ddptop", "dim")
    return row


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
        return {key: _process_row(line) for key, line in self._lines.items()}

    def choose(self, key: str) -> None:
        self.dismiss(self._lines.get(key))


_HEAD = f"{'PID':>8}  {'ROLE':<11} {'RANK':>4}  {'STATE':<10} {'AGE':>7}  {'CPU':>5}  {'MEMORY':>8}  COMMAND"


def _key(line: ProcessLine) -> str:
    return f"{line.process.pid}-{line.process.started}"


def _process_row(line: ProcessLine) -> Text:
    rank = units.DASH if line.rank is None else str(line.rank)
    cpu = units.DASH if line.cpu_percent is None else f"{line.cpu_percent:.0f}%"
    return Text(
        f"{line.process.pid:>8}  {line.role:<11} {rank:>4}  {line.status:<10} {units.duration(line.age_s).strip():>7}  "
        f"{cpu:>5}  {units.size(line.memory_bytes).strip():>8}  {line.command}",
        no_wrap=True,
        overflow="ellipsis",
    )


class Scripts(DirectoryTree):
    """Folders, and the Python files in them."""

    ICON_NODE = "▸ "
    ICON_NODE_EXPANDED = "▾ "
    ICON_FILE = "  "

    def filter_paths(self, paths: Iterable[Path]) -> Iterable[Path]:
        """Leave out what is hidden and what is no script."""
        return [path for path in paths if not path.name.startswith(".") and (path.suffix == ".py" or path.is_dir())]

    def process_label(self, label: TextType) -> Text:
        """Return a name without anything that a terminal would obey."""
        return Text(clean(str(label), 200))


class ScriptPicker(Picker[str]):
    """Lets the user choose a script; returns its path, or None."""

    DECIDES = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "Cancel", id="scripts.cancel", tooltip="Close; no script is chosen"),
        Binding("backspace", "up", "Up", id="scripts.up", tooltip="Look into the folder above"),
    ]
    LOOK = "-harmless"
    HINT = "{enter} opens or takes, {up} goes up, {cancel} cancels"

    def __init__(self, folder: Path) -> None:
        super().__init__(_shown(folder))
        self._folder = folder

    def contents(self) -> ComposeResult:
        yield Scripts(self._folder)

    def on_mount(self) -> None:
        """Begin in the tree."""
        self.query_one(Scripts).show_root = False
        self.query_one(Scripts).focus()

    def action_up(self) -> None:
        self._folder = self._folder.parent
        self.query_one(Scripts).path = self._folder
        self.query_one("#question", Static).update(Content(_shown(self._folder)))

    @on(DirectoryTree.FileSelected)
    def _selected(self, event: DirectoryTree.FileSelected) -> None:
        here = Path(os.getcwd())
        path = event.path
        self.dismiss(str(path.relative_to(here)) if path.is_relative_to(here) else str(path))


def _shown(folder: Path) -> str:
    return clean(str(folder), 200)


class SignalMenu(ListPicker[int]):
    """Lets the user choose a signal; returns its number, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "Send", id="signals.send", tooltip="Send the marked signal", priority=True),
        Binding("escape", "close", "Cancel", id="signals.cancel", tooltip="Close; nothing is sent"),
        Binding("down", "move(1)", "Next", id="signals.next", tooltip="Mark the next signal", show=False),
        Binding("up", "move(-1)", "Previous", id="signals.previous", tooltip="Mark the signal before", show=False),
    ]
    HINT = "type or {previous} {next} to choose, {send} sends it, {cancel} cancels"
    PRESELECTS = False
    FILTER = "type to filter: a name or a number"

    def __init__(self, whom: str, world: int, timeout_s: float | None = None) -> None:
        super().__init__(f"Send a signal to {whom}")
        self._world = world
        self._timeout_s = timeout_s

    def contents(self) -> ComposeResult:
        """Yield field and list, and a place for a warning."""
        yield from super().contents()
        yield Static("", id="warning")

    def rows(self, typed: str) -> dict[str, Text]:
        """Return the signals whose name holds, or whose number begins with, what is typed; the usual ones first."""
        needle = typed.strip().upper()
        found = (n for n in signals.every() if needle in signals.name(n) or str(n).startswith(needle))
        return {str(number): _signal_row(number) for number in found}

    def fill(self, mark: str | None = None, typed: str = "") -> None:
        """Offer the signals that fit, and say so where none does."""
        super().fill(mark, typed)
        if not self.query_one(OptionList).option_count:
            self._warn("no signal of that name or number")
        elif self.marked is None:
            self._warn("")

    @on(OptionList.OptionHighlighted)
    def _marked(self, event: OptionList.OptionHighlighted) -> None:
        pause = keys_of(self)["run.pause"]
        self._warn(signals.warning(int(event.option_id or 0), self._world, self._timeout_s, pause) or "")

    def _warn(self, text: str) -> None:
        self.query_one("#warning", Static).update(Content(text))

    def choose(self, key: str) -> None:
        self.dismiss(int(key))


def _signal_row(number: int) -> Text:
    return Text(
        f"{number:>3}  {signals.name(number):<12}  {signals.describe(number)}", no_wrap=True, overflow="ellipsis"
    )
