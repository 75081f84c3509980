"""The dashboard uses Textual by its public names; the private ones that are left are listed here, and only leave."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2] / "tui"
LEFT: Final = {
    "app/app.py": {"_handle_exception", "_exit_renderables"},
    "app/keys/palette.py": {"_action_command_list"},
    "app/several.py": {"_result_callbacks", "_push_result_callback"},
}  # fmt: skip
"""By file, the private names that are still in use."""


def private(name: str) -> bool:
    return re.match(r"_[a-zA-Z]", name) is not None


@cache
def names_of(cls: type) -> frozenset[str]:
    """Return the private names that a class makes: methods, class attributes, and what it assigns to itself."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    stored = [each for each in ast.walk(tree) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)]
    found = {each.attr for each in stored if isinstance(each.value, ast.Name) and each.value.id == "self"}
    return frozenset(filter(private, found | vars(cls).keys()))


def inherited(cls: type) -> set[str]:
    """Return the private names that a class has from Textual."""
    return {name for base in cls.__mro__ if base.__module__.startswith("textual.") for name in names_of(base)}


def uses(path: Path) -> Iterator[str]:
    """Yield the private names of Textual that a module imports, redefines or reads."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        named = [each.name for each in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        yield from (each for each in (module, *named) if each.startswith("textual._"))
        yield from (each for each in named if module.startswith("textual") and private(each))
    if "textual" not in path.read_text():
        return
    # Of one class or another: nobody knows of which the object beside a name is.
    known = {name for cls in textual_classes() for name in names_of(cls)}
    loaded = importlib.import_module(f"ddptop.tui.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}")
    classes = [each for each in tree.body if isinstance(each, ast.ClassDef)]
    for each in classes:
        theirs = inherited(getattr(loaded, each.name))
        for node in ast.walk(each):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in theirs:
                yield node.name
            elif isinstance(node, ast.Attribute) and is_own(node) and node.attr in theirs:
                yield node.attr
    yield from (
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and not is_own(node) and node.attr in known
    )


def is_own(node: ast.Attribute) -> bool:
    """Say whether a node is an attribute of `self`."""
    return isinstance(node.value, ast.Name) and node.value.id == "self"


@cache
def textual_classes() -> frozenset[type]:
    """Return the classes whose objects the dashboard has in its hands."""
    from textual.app import App
    from textual.command import CommandPalette
    from textual.screen import Screen
    from textual.scroll_view import ScrollView
    from textual.widgets import Input, OptionList

    chosen = (App, CommandPalette, Screen, ScrollView, Input, OptionList)
    return frozenset(base for each in chosen for base in each.__mro__ if base.__module__.startswith("textual."))


def test_no_further_private_name_of_textual() -> None:
    """A name that is new here breaks with a version of Textual; one that is gone is taken from the list."""
    found = {str(path.relative_to(ROOT)): set(uses(path)) for path in ROOT.rglob("*.py") if path.name != "__init__.py"}
    assert {path: names for path, names in found.items() if names} == LEFT
