"""The line of code behind a verdict, in a real run one rank of which sleeps in a hook of its backward pass."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.harness import ddptop, status, until
from support.processes.ranks import observed

PROGRAM = Path(__file__).parents[3] / "bench" / "faulty" / "programs" / "delays.py"


def test_the_line_that_holds_the_group_back_is_named(tmp_path: Path) -> None:
    """By the file and the function, as the program itself has noted; and in words at the end of the verdict."""
    script, note = tmp_path / "delays.py", tmp_path / "note"
    shutil.copy(PROGRAM, script)
    with observed("delayed", script, "hook", "--note", str(note), "--at", "20", "--ms", "40"):

        def named() -> dict[str, Any] | None:
            verdicts: list[dict[str, Any]] = status("delayed")["verdicts"]
            return next((each for each in verdicts if each["line"]), None)

        verdict: Any = until(named, "the line behind the verdict")
        profile = json.loads(ddptop("profile", "delayed", "--steps", "2", "--json").stdout)
        pieces = json.loads(gzip.decompress(Path(profile["trace"]).read_bytes()))["traceEvents"]
    assert (verdict["kind"], verdict["rank"], verdict["line"]) == ("slow_rank", 1, note.read_text())
    assert verdict["line_share"] > 0.5
    assert verdict["line_ms"] == pytest.approx(verdict["line_share"] * verdict["cost_ms"], rel=0.01)
    assert f": backward pass, since step {verdict['since_step']} · {verdict['line']} (" in verdict["text"]
    assert (profile["ranks"], profile["culprit"], profile["peer"]) == ([0, 1], 1, 0)
    first, last = profile["steps"]
    marks = {(each["pid"], each["name"]) for each in pieces if each.get("cat") == "ddptop step"}
    # The same whole steps of both, each in a process of its own.
    assert {name for _, name in marks} == {f"step {first}", f"step {last}"}
    assert last == first + 1
    assert len({pid for pid, _ in marks}) == 2
    # It sleeps in a hook, which is Python's time and no operator's.
    largest = profile["operators"][0]
    assert largest["difference_ms"] > 0.5 * verdict["cost_ms"]
