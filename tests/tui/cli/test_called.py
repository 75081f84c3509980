"""Command lines in what is printed begin with the program as the user has called it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddptop.agent.client.acting import actor
from ddptop.tui.cli import parsing
from ddptop.tui.cli.parsing import FAMILIES, as_called

ADVICE = "toy goes on.  Come back: ddptop attach toy, `ddptop kill toy` ends it; ddptop has no agent in ddptop.agent"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is the present one and on no search path, with this program in `.venv/bin`."""
    program = tmp_path / ".venv" / "bin" / "ddptop"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    parsing._called.cache_clear()
    return program.parent


@pytest.mark.parametrize(
    ("called", "path", "begins"),
    [
        (".venv/bin/ddptop", "/nowhere", ".venv/bin/ddptop"),
        ("{folder}/ddptop", "/nowhere", "{folder}/ddptop"),
        # Found by the shell, or by an absolute path that the shell would find, too.
        ("{folder}/ddptop", "{folder}", "ddptop"),
        # Started by Python, or not from a file.
        ("{folder}/main.py", "/nowhere", "ddptop"),
        ("gone/ddptop", "/nowhere", "ddptop"),
    ],
)
def test_advice_can_be_typed_as_it_is_printed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, called: str, path: str, begins: str
) -> None:
    """`ddptop attach` does not help who typed `.venv/bin/ddptop`; words that are no command line stay."""
    monkeypatch.setattr(sys, "argv", [called.format(folder=folder)])
    monkeypatch.setenv("PATH", path.format(folder=folder))
    begins = begins.format(folder=folder)
    said = as_called(ADVICE)
    assert said == ADVICE.replace("ddptop attach", f"{begins} attach").replace("ddptop kill", f"{begins} kill")


def test_another_machine_is_asked_as_its_user_asks_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of the program there is not the one that a user types here."""
    monkeypatch.setattr(sys, "argv", [".venv/bin/ddptop"])
    monkeypatch.setattr(actor, "named", "node1")
    assert as_called(ADVICE) == ADVICE


def test_a_complaint_says_so_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own prefix stays."""
    monkeypatch.setattr(sys, "argv", [".venv/bin/ddptop"])
    assert parsing.complain("no run is alive; `ddptop ps` lists all", 2) == 2
    assert capsys.readouterr().err == "ddptop: no run is alive; `.venv/bin/ddptop ps` lists all\n"


@pytest.mark.parametrize("verb", sorted(FAMILIES))
def test_each_verb_is_known_in_advice(folder: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """The advice of a verdict is often a diagnosis."""
    monkeypatch.setattr(sys, "argv", [".venv/bin/ddptop"])
    assert as_called(f"`ddptop {verb} toy` says more") == f"`.venv/bin/ddptop {verb} toy` says more"
