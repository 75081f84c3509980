"""The client alone is enough for a program that looks on: the example in the manual."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ddptop.tui.cli.output import pages


def imported(text: str) -> set[str]:
    """Return the modules of ddptop that a piece of Python imports."""
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    return {node.module or "" for node in found if (node.module or "").startswith("ddptop")}


def test_the_example_of_the_manual_runs(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Here where there is no run."""
    (code,) = re.findall(r"```python\n(.*?)```", pages.read("json"), re.DOTALL)
    assert all(module.startswith("ddptop.agent.client") for module in imported(code))
    exec(compile(code, "json.md", "exec"), {})
    assert capsys.readouterr().out == ""
