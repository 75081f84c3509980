"""A run that was there before is shown as it is, from the first line on."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from support.screens.frames import frame

from ddptop.agent.run.rundir import RunDir
from ddptop.tui.cli import view
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
