"""Which run a verb takes that is given none."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator

import pytest

from ddptop.agent.run import rundir
from ddptop.tui.cli.main import main


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A runtime directory of its own; the path is short, because sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="ddptop-") as folder:
        monkeypatch.setenv(rundir.BASE_VARIABLE, folder)
        yield


@pytest.fixture
def ended() -> None:
    """Two runs that have ended."""
    for at, name in enumerate(("toy-0001", "hang-5d09"), 1):
        rundir.create(rundir.Run(name, name, "toy", (), 1, "gloo", "cpu", at * 10**9, True, state="failed"))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    monkeypatch.setattr(sys, "argv", ["ddptop", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    return exited.value.code


@pytest.mark.parametrize("verb", ["logs", "status", "events"])
def test_what_prints_takes_the_last_run(
    verb: str, ended: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where none is alive it is the newest that has ended, and stderr names it."""
    assert run(monkeypatch, verb) == 0
    assert capsys.readouterr().err.startswith("ddptop: no live run; this is the last one, hang-5d09\n")


@pytest.mark.parametrize("verb", ["attach", "watch", "pause", "stop"])
def test_the_others_name_the_last_run(
    verb: str, ended: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They end with 2, and with the command that shows it."""
    assert run(monkeypatch, verb) == 2
    output, errors = capsys.readouterr()
    assert (output, errors) == (
        "", "ddptop: no run is alive; the last: `ddptop attach hang-5d09`; `ddptop ps` lists all\n"
    )  # fmt: skip


def test_without_any_run_one_is_proposed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to look at yet."""
    assert run(monkeypatch, "logs") == 2
    assert capsys.readouterr().err == "ddptop: no run is alive; `ddptop launch --world 4 resnet` starts one\n"
