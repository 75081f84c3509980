"""What acts on a run: what it tells of that, and what is refused to those who may only look."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from support.screens.frames import StillSource, frame

from ddptop.agent import wire
from ddptop.agent.control import journal
from ddptop.agent.control.polled import Unheard
from ddptop.agent.observer.record import recording
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Run
from ddptop.tui.link import control
from ddptop.tui.link.control import RunControl
from ddptop.tui.link.source import Control, Hung, ReadOnly, Refused, Source

ACTIONS = {name for name in vars(Control) if not name.startswith("_")}
LOOKS = {"resumable", "victims", "processes"}
"""What leaves a run as it is."""
DECIDED_BY_RANKS = {"pause", "step", "checkpoint", "stop"}
"""What leaves nothing half done where it is broken off, and may take as long as the training."""
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "step": (1,),
    "kill": (0.0, None, print),
    "signal": (15, None),
    "victims": (None,),
}
KEYWORDS = {"stop": {"checkpoint": False}, "restart": {"resume": False}}


def ask(control: Control, name: str) -> object:
    """Have it do something, by name."""
    return getattr(control, name)(*ARGUMENTS.get(name, ()), **KEYWORDS.get(name, {}))


def test_what_must_not_be_broken_off_is_told() -> None:
    """What is added to `Control` leaves the run alone, or nothing of it half done, or it is told while it goes on."""
    run = Run("toy-1", "id", "toy.py", (), 1, "gloo", "cpu", 10**9, True)
    directory = rundir.create(run)
    shutil.rmtree(directory.path)
    told: list[str] = []

    @contextmanager
    def acting() -> Iterator[None]:
        told.append("begun")
        yield
        told.append("not refused")

    for name in sorted(ACTIONS):
        told.clear()
        with suppress(Refused):
            ask(RunControl(directory, run, "test", acting=acting), name)
        assert told == ([] if name in LOOKS | DECIDED_BY_RANKS else ["begun"]), name


def test_a_run_on_several_hosts_is_not_frozen() -> None:
    """It is refused in one line that says what to do instead, and is told with the run."""
    run = Run("toy-1", "id", "toy.py", (), 4, "gloo", "cpu", 10**9, False, local_world=2, nodes=2)
    directory = rundir.create(run)
    try:
        with pytest.raises(Refused, match=r"several hosts.*nothing is frozen; `ddptop pause toy-1` holds all hosts"):
            RunControl(directory, run, "ada (shell)").freeze()
        assert not (directory.path / "frozen.json").exists()
        assert [each.action for each in journal.events(directory.database, directory.read())] == ["freeze"]
    finally:
        shutil.rmtree(directory.path)


def test_a_run_to_be_looked_at_can_only_be_looked_at() -> None:
    """Every action is refused, also what only tells of processes; what a source can do besides is not there."""
    still = StillSource(frame())
    source = ReadOnly(still)
    for name in sorted(ACTIONS):
        with pytest.raises(Refused, match="read-only"):
            ask(source.control, name)
    with pytest.raises(Refused, match="read-only"):
        source.open("another")
    assert still.asked == []
    reading = {"poll", "advance", "frame", "watch", "close", "inspector", "report"}
    assert {name for name in dir(source) if not name.startswith("_")} == reading | {"open", "control"}
    assert reading | {"open", "control"} == {name for name in vars(Source) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("goes_on", "said"),
    [(False, "cancelled (SIGINT)"), (True, "the shell stopped waiting (SIGINT); the action goes on")],
)
def test_an_interrupted_action_is_cancelled_only_where_it_is_undone(
    goes_on: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event of `ddptop step RUN 1000` and Ctrl-C does not say that steps that are being made are not."""
    run = Run(f"toy-{goes_on}", "id", "toy.py", (), 1, "gloo", "cpu", 10**9, True)
    directory = rundir.create(run)
    noted: list[wire.Event] = []

    class Interrupted:
        def __init__(self, *_: object, **__: object) -> None:
            self.goes_on = goes_on

        def advance(self, steps: int) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr(control, "Controller", Interrupted)
    monkeypatch.setattr(control, "LiveGroup", nullcontext)
    monkeypatch.setattr(journal, "note", lambda directory, event: noted.append(event))
    monkeypatch.setattr(control, "await_observer", lambda directory: None)
    with pytest.raises(KeyboardInterrupt):
        RunControl(directory, run, "ada (shell)").step(1000)
    assert [event.text for event in noted] == [f"step 1000: {said} · ada (shell)"]


@pytest.mark.parametrize("until_at_ns", [None, 9])
def test_how_a_run_hangs_is_what_is_recorded_and_goes_on(
    until_at_ns: int | None, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that does not answer is told as the hang that it is; one of a hang that is over is not."""
    run = Run(f"toy-hung-{until_at_ns}", "id", "toy.py", (), 2, "gloo", "cpu", 10**9, True)
    directory = rundir.create(run)
    text = "rank 1 hangs: it is stopped by SIGSTOP · 1,012 s"
    verdict = wire.Verdict(1, "hang", text, 1, until_at_ns, rank=1, hang=wire.Hang("stopped", (1,)))
    directory.database.touch(mode=0o600)
    monkeypatch.setattr(recording, "read_verdicts", lambda database: [verdict])

    class Unanswered:
        goes_on = False

        def __init__(self, *_: object, **__: object) -> None: ...

        def pause(self) -> str:
            raise Unheard("rank 1 did not answer within 2 s")

    monkeypatch.setattr(control, "Controller", Unanswered)
    monkeypatch.setattr(control, "LiveGroup", nullcontext)
    monkeypatch.setattr(journal, "note", lambda directory, event: None)
    monkeypatch.setattr(control, "await_observer", lambda directory: None)
    with pytest.raises(Refused) as refused:
        RunControl(directory, run, "ada (shell)").pause()
    hung = until_at_ns is None
    assert isinstance(refused.value, Hung) == hung
    said = "rank 1 hangs: it is stopped by SIGSTOP" if hung else "rank 1 did not answer within 2 s"
    assert str(refused.value) == said
