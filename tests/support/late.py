"""Imports that a test module makes only when its tests run.

Every worker reads all test files, and torch takes seconds to import.  A module that needs it writes

    if TYPE_CHECKING:
        import torch

    _imports = late.imports(globals())

and has `torch` in its tests, not while it is read: what holds when it is read, decorators, base classes and
defaults among them, cannot use it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def imports(module: dict[str, Any]) -> Callable[[], None]:
    """Return a fixture that, before the first test of a module, makes the imports below its `if TYPE_CHECKING:`."""
    path = module["__file__"]

    @pytest.fixture(scope="module", autouse=True)
    def made() -> None:
        for node in ast.parse(Path(path).read_text()).body:
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                exec(compile(ast.Module(node.body, []), path, "exec"), module)

    return made
