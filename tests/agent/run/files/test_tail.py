"""The end of a log."""

from __future__ import annotations

from pathlib import Path

from ddptop.agent.run.files import tail


def test_the_end_of_a_log_is_text(tmp_path: Path) -> None:
    """A character that is cut through is told as such; where there is no plain file, there is no text."""
    log = tmp_path / "rank-0.log"
    log.write_text("first ü\nlast", encoding="utf-8")
    assert tail.end(log) == "first ü\nlast"
    assert tail.end(log, 6) == "\N{REPLACEMENT CHARACTER}\nlast"
    link = tmp_path / "link.log"
    link.symlink_to(log)
    assert tail.end(link) == ""
    assert tail.end(tmp_path) == ""
    assert tail.end(tmp_path / "none") == ""
