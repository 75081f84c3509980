"""A run that was there before is shown as it is, from the first line on."""

from __future__ import annotations

from typing import cast

import pytest
from msgspec.structs import replace
from support.screens.frames import frame, rank_frame

from ddptop.agent.run.rundir import RunDir
from ddptop.tui.cli import view
from ddptop.tui.cli.output import plain
from ddptop.tui.model.frame import Frame, RankFrame
from ddptop.tui.settings import Settings


class Late:
    """A link that hears of the run at its third poll; before, all ranks look as if they had not come yet."""

    unmet = (0,)

    def __init__(self, *_: object) -> None:
        self.polls = 0

    @property
    def complete(self) -> bool:
        return self.polls > 2

    def poll(self) -> None:
        self.polls += 1

    def advance(self, now: float) -> None:
        pass

    def frame(self) -> Frame:
        unheard = replace(frame("starting", 1), ranks=(RankFrame(0, "starting", "waiting for the process"),))
        if not self.complete:
            return unheard
        return frame("running", 1) if self.polls < 5 else frame("finished", 1, exit_code=0)

    def close(self) -> None:
        pass


def test_a_run_is_not_called_starting_before_it_is_heard(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`watch` waits for the first word of the observer, and only then says a state."""
    monkeypatch.setattr(view, "Link", Late)
    assert view.follow_plainly(cast("RunDir", None), Settings(), launched_here=False) == 0
    printed = capsys.readouterr().out
    assert "starting" not in printed
    assert "step 1,284" in printed


class Starting:
    """A link that shows one frame after the other, a poll each; the last one stays."""

    def __init__(self, *frames: Frame) -> None:
        self.frames = list(frames)
        self.polls = 0

    def poll(self) -> None:
        self.polls += 1

    def advance(self, now: float) -> None:
        pass

    def frame(self) -> Frame:
        return self.frames[min(self.polls, len(self.frames)) - 1]

    def close(self) -> None:
        pass


def await_start(monkeypatch: pytest.MonkeyPatch, *frames: Frame, begun_s: float = 1e6) -> tuple[str | None, int]:
    """Return what `launch --detach` says of a run with these frames, and at which poll."""
    link = Starting(*frames)
    monkeypatch.setattr(view, "Link", lambda *_: link)
    monkeypatch.setattr(plain, "POLL_S", 0.0)
    monkeypatch.setattr(view, "BEGUN_S", begun_s)
    return view.await_start(cast("RunDir", None), Settings()), link.polls


def failed(generation: int, state: str = "failed") -> Frame:
    """Return a run of two ranks, of which torchrun restarts once what has failed."""
    ranks = (rank_frame(0, state, ended=None), rank_frame(1, "starting", activity="imports"))
    return frame("running", 2, ranks=ranks, cause="rank 0: no port", generation=generation, max_restarts=1)


def test_a_failure_that_torchrun_restarts_is_no_failure_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is awaited again; the cause of the start before, which is told a moment longer, is not its own."""
    fine = frame("running", 2, generation=1, max_restarts=1)
    assert await_start(monkeypatch, failed(0), failed(0), failed(1, "running"), fine) == (None, 4)
    assert await_start(monkeypatch, failed(0), failed(1, "running"), failed(1)) == ("rank 0: no port", 3)
    # However long torchrun takes to restart it.
    assert await_start(monkeypatch, failed(0), failed(0), failed(0), fine, begun_s=0.0) == (None, 4)


def test_a_start_is_not_awaited_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that stay at their imports, or of which no word comes, have so many seconds from their process on."""
    imports = rank_frame(0, "starting", activity="imports")
    unheard = rank_frame(1, "starting", activity="waiting for its first word", heard_age_s=None)
    absent = replace(unheard, pid=None)
    starting = frame("starting", 2, ranks=(imports, absent))
    come = frame("starting", 2, ranks=(imports, unheard))
    silent = frame("running", 2, ranks=(rank_frame(0), replace(absent, state="silent")))
    assert await_start(monkeypatch, starting, come, come, silent) == (None, 4)
    # Who has no process yet is awaited, however long that is.
    assert await_start(monkeypatch, starting, starting, starting, come, begun_s=0.0) == (None, 5)
