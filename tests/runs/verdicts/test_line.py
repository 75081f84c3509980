"""The line of code behind a verdict, in a real run one rank of which sleeps in a hook of its backward pass."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.harness import status, until
from support.processes.ranks import observed

PROGRAM = Path(__file__).parents[2] / "bench" / "faulty" / "programs" / "delays.py"


def test_the_line_that_holds_the_group_back_is_named(tmp_path: Path) -> None:
    """By the file and the function, as the program itself has noted; and in words at the end of the verdict."""
    script, note = tmp_path / "delays.py", tmp_path / "note"
    shutil.copy(PROGRAM, script)
    with observed("delayed", script, "hook", "--note", str(note), "--at", "20", "--ms", "40"):

        def named() -> dict[str, Any] | None:
            verdicts: list[dict[str, Any]] = status("delayed")["verdicts"]
            return next((each for each in verdicts if each["line"]), None)

        verdict: Any = until(named, "the line behind the verdict")
    assert (verdict["kind"], verdict["rank"], verdict["line"]) == ("slow_rank", 1, note.read_text())
    assert verdict["line_share"] > 0.5
    assert verdict["line_ms"] == pytest.approx(verdict["line_share"] * verdict["cost_ms"], rel=0.01)
    assert f": backward pass, since step {verdict['since_step']} · {verdict['line']} (" in verdict["text"]
