"""Functions that run right after an import."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from ddptop.agent.rank.hooks.imports import after_import


def test_a_library_may_look_for_the_module_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `datasets` does for torch: the functions run after the import that follows, once each, in any number."""
    (tmp_path / "looked_for.py").write_text("told = []")
    monkeypatch.syspath_prepend(tmp_path)
    for number in range(2):
        after_import("looked_for", lambda module, number=number: module.told.append(number))  # type: ignore[misc]
    for _ in range(2):
        assert importlib.util.find_spec("looked_for") is not None
    assert sorted(importlib.import_module("looked_for").told) == [0, 1]
    monkeypatch.delitem(sys.modules, "looked_for")
    assert importlib.import_module("looked_for").told == []
