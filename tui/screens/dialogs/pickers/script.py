"""The choice of a script from the folders of the machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from rich.text import Text, TextType
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import DirectoryTree, Static

from ddptop.agent.text import clean
from ddptop.tui.screens.dialogs.pickers.picker import Picker


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
