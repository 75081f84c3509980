"""The docstring of a package is the map of its folder."""

from __future__ import annotations

import ast
import re
from typing import Final

import pytest
import readme

PACKAGES: Final = sorted(
    path.parent.relative_to(readme.ROOT).as_posix()
    for top in ("agent", "trainers", "tui")
    for path in (readme.ROOT / top).rglob("__init__.py")
)


@pytest.mark.parametrize("package", PACKAGES)
def test_each_entry_of_a_folder_is_named_in_its_map(package: str) -> None:
    """A line of the map is a name, two spaces or more, and its purpose; each module and sub-package has one line."""
    folder = readme.ROOT / package
    modules = [path.stem for path in folder.glob("*.py") if path.name != "__init__.py"]
    packages = [path.parent.name for path in folder.glob("*/__init__.py")]
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    assert text is not None
    named = re.findall(r"^(\w+) {2,}\S", text, re.MULTILINE)
    assert sorted(named) == sorted(modules + packages)
