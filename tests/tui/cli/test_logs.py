"""`ddptop logs` says so where there is nothing to print."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddptop.agent.observer.status import survey
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run, RunDir
from ddptop.tui.cli import logs


@pytest.fixture
def directory(runtime: Path) -> Iterator[RunDir]:
    """A run of two ranks that has ended, whose rank 0 has left half a line and rank 1 an empty log."""
    run = Run("quiet", "1", "x.py", (), 2, "gloo", "cpu", 1, True, state="finished", exit_code=0, ended_at_ns=2)
    made = rundir.create(run)
    made.rank_log(0).write_text("first\nhalf a line")
    made.rank_log(1).write_text("")
    yield made
    rundir.remove(made, "1")


def shown(directory: RunDir, rank: int | None) -> tuple[list[str], list[str]]:
    """Return what is printed, and what is noted beside it."""
    printed: list[str] = []
    noted: list[str] = []
    logs.show(directory, rank, follow=False, say=printed.append, note=noted.append)
    return printed, noted


def test_an_empty_log_is_told(directory: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the output, so that a pipe gets nothing; of a live run, that nothing has come yet."""
    assert shown(directory, 1) == ([], ["rank 1 printed nothing"])
    ended = survey.look(directory)
    monkeypatch.setattr(survey, "look", lambda _: dataclasses.replace(ended, state="running"))
    assert shown(directory, 1) == ([], ["rank 1 has printed nothing yet"])
    directory.rank_log(0).unlink()
    assert shown(directory, None) == ([], ["no rank has printed anything yet"])


def test_a_last_line_that_does_not_end_is_printed(directory: RunDir) -> None:
    """As the prompt or the progress bar at which a run came to its end."""
    assert shown(directory, 0) == (["first", "half a line"], [])
    assert shown(directory, None)[0] == ["[0] first", "[0] half a line"]
