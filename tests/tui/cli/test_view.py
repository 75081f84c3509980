"""A run that was there before is shown as it is, from the first line on."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from support.screens.frames import frame, rank_frame

from ddptop.agent.client import runs
from ddptop.agent.client.frame import Frame
from ddptop.agent.client.host.settings import Settings
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.wire.frames import RankFrame
from ddptop.tui.cli import view
from ddptop.tui.cli.output import plain
from ddptop.tui.cli.verbs.options import show_launched


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

    def frame(self) -> Frame:
        unheard = replace(
            frame("starting", 1), ranks=(RankFrame(rank=0, state="starting", activity="waiting for the process"),)
        )
        if not self.complete:
            return unheard
        return frame("running", 1) if self.polls < 5 else frame("finished", 1, exit_code=0)

    def close(self) -> None:
        pass


def test_a_run_is_not_called_starting_before_it_is_heard(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`watch` waits for the first word of the observer, and only then says a state."""
    monkeypatch.setattr(view, "Watch", Late)
    assert view.follow_plainly(cast("runs.Run", None), Settings(), launched_here=False) == 0
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

    def frame(self) -> Frame:
        return self.frames[min(self.polls, len(self.frames)) - 1]

    def close(self) -> None:
        pass


@pytest.mark.parametrize("no_wait", [False, True])
def test_ctrl_c_while_a_start_is_awaited_leaves_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_wait: bool
) -> None:
    """It says how to come back and how to end it; `--no-wait` does not wait, and prints the name alone."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(view, "await_start", interrupted)
    options = Namespace(detach=True, no_wait=no_wait)
    assert show_launched(options, runs.Run(RunDir(Path("toy-1"))), Settings()) == (0 if no_wait else 130)
    printed = capsys.readouterr()
    goes_on = "toy-1 goes on.  Come back: ddptop attach toy-1\nEnd it:        ddptop kill toy-1\n"
    assert (printed.out, printed.err) == (("toy-1\n", "") if no_wait else ("", goes_on))


SAID: list[str] = []


def await_start(
    monkeypatch: pytest.MonkeyPatch, *frames: Frame, others_s: float = 1e6, no_step_s: float = 1e6
) -> tuple[str | None, int]:
    """Return what `launch --detach` says of a run with these frames, and at which poll; the lines meanwhile: `SAID`."""
    link = Starting(*frames)
    SAID.clear()
    monkeypatch.setattr(view, "Watch", lambda *_: link)
    monkeypatch.setattr(plain, "POLL_S", 0.0)
    monkeypatch.setattr(view, "OTHERS_S", others_s)
    monkeypatch.setattr(view, "NO_STEP_S", no_step_s)
    return view.await_start(cast("runs.Run", None), Settings(), SAID.append), link.polls


def started(*steps: int | None, state: str = "running", **changes: Any) -> Frame:
    """Return a run whose ranks are past their imports and have made so many steps."""
    ranks = tuple(rank_frame(rank, state, activity="forward") for rank in range(len(steps)))
    ranks = tuple(replace(rank, step=step) for rank, step in zip(ranks, steps, strict=True))
    return frame(state, len(steps), **{"ranks": ranks, "max_restarts": 1, **changes})


def failed(generation: int, cause: str | None = "rank 0: no port", *, is_over: bool = True) -> Frame:
    """Return a run of two ranks, of which torchrun restarts once what has failed."""
    first = replace(rank_frame(0, "failed" if is_over else "running", ended=None), step=None)
    ranks = (first, rank_frame(1, "starting", activity="imports"))
    return frame("running", 2, ranks=ranks, cause=cause, generation=generation, max_restarts=1)


def test_a_start_is_over_once_each_rank_has_made_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither their imports nor the steps of others are enough; what it has come to is said meanwhile."""
    imports = frame("starting", 2)
    frames = imports, started(None, None, state="starting"), started(3, None), started(4, 1)
    assert await_start(monkeypatch, *frames) == (None, 4)
    assert SAID == ["imports", "forward", "forward"]


def test_a_rank_that_fails_before_its_first_step_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it was past its imports: the cause is said. A run that has finished without a step has begun."""
    working = started(None, None, state="starting", max_restarts=0)
    over = replace(working, state="failed", cause="rank 1: no such file")
    assert await_start(monkeypatch, working, working, over) == ("rank 1: no such file", 3)
    assert await_start(monkeypatch, working, replace(over, cause=None, state="lost")) == ("it is lost", 2)
    assert await_start(monkeypatch, working, replace(working, state="finished")) == (None, 2)


def test_a_failure_that_torchrun_restarts_is_no_failure_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is awaited again; the cause of the start before, which is told a moment longer, is not its own."""
    fine, before = started(1, 1, generation=1), failed(1, is_over=False)
    assert await_start(monkeypatch, failed(0), failed(0), before, fine) == (None, 4)
    assert await_start(monkeypatch, failed(0), before, failed(1)) == ("rank 0: no port", 3)
    # However long torchrun takes to restart it.
    assert await_start(monkeypatch, failed(0), failed(0), failed(0), fine, no_step_s=-1.0) == (None, 4)


def test_a_first_step_is_not_awaited_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script without steps counts as started after a while, and ranks that make none a while after the others."""
    absent = replace(rank_frame(1, "starting", activity="waiting for its first word", heard_age_s=None), pid=None)
    starting = frame("starting", 2, ranks=(rank_frame(0, "starting"), absent))
    working = started(None, None, state="starting")
    # Who has no process yet is awaited, however long that is.
    assert await_start(monkeypatch, starting, starting, working, no_step_s=-1.0) == (None, 3)
    assert await_start(monkeypatch, working, started(1, None), others_s=-1.0) == (None, 2)
