"""Shell completion, in the shells themselves: what each offers for a line that is half typed."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import harness

from ddptop.agent.run import rundir
from ddptop.agent.run.switches import injection
from ddptop.trainers import CATALOGUE
from ddptop.tui.cli import completion
from ddptop.tui.cli.parsing import FAMILIES
from ddptop.tui.cli.verbs.reference import LINES
from ddptop.tui.control import signals

ASKED = {
    "bash": """
        eval "$(ddptop completion bash)"
        COMP_LINE="$1" COMP_POINT=${#1} COMP_TYPE=9 COMP_WORDS=($1)
        _python_argcomplete ddptop
        printf '%s\\n' "${COMPREPLY[@]}"
    """,
    # Its own completion needs a terminal: this stands in for what draws the list.
    "zsh": """
        compdef() { : }
        eval "$(ddptop completion zsh)"
        _describe() { print -l -- "${completions[@]%%:*}" }
        words=(ddptop) BUFFER="$1" CURSOR=${#1}
        _python_argcomplete
    """,
    "fish": """
        ddptop completion fish | source
        complete -C "$argv[1]" | string split -f 1 \\t
    """,
}
"""By shell, what asks for the completions of the first argument, one a line."""
NOT_HERE = {shell: shutil.which(shell) is None for shell in ASKED}

Ask = Callable[[str, str], list[str]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A home with a `project`, a folder with scripts."""
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "restore.py").write_text("")
    (folder / "restart.py").write_text("")
    return tmp_path


@pytest.fixture
def ask(project: Path) -> Ask:
    """Ask a shell, with a `ddptop` that is this one, in the project; returns what it offers."""
    program = project / "bin" / "ddptop"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ddptop.tui.cli.main "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HOME": str(project)}

    def ask(shell: str, line: str) -> list[str]:
        options = {"bash": ["--norc", "-c"], "zsh": ["-f", "-c"], "fish": ["-N", "-c"]}[shell]
        name = [] if shell == "fish" else [shell]
        done = subprocess.run(
            [shell, *options, ASKED[shell], *name, line],
            cwd=project / "project", env=environment, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0
        assert done.stderr == ""
        return [found.strip() for found in done.stdout.splitlines() if found.strip()]

    return ask


@pytest.fixture
def ended_run(runtime: Path) -> str:
    """A run that has ended."""
    name = f"ended-{os.getpid()}"
    rundir.create(
        rundir.Run(name, name, "toy", (), 2, "gloo", "cpu", time.time_ns(), True, state="finished", exit_code=0)
    )
    return name


@pytest.mark.parametrize(
    "shell",
    [pytest.param(shell, marks=pytest.mark.skipif(NOT_HERE[shell], reason=f"no {shell} here")) for shell in ASKED],
)
def test_a_shell_completes_verbs_and_programs(shell: str, ask: Ask) -> None:
    """In each shell, with the line that the help gives for it."""
    assert f"ddptop completion {shell}" in LINES[shell][1]
    assert set(ask(shell, "ddptop st")) == {"stacks", "status", "step", "stop"}
    assert set(ask(shell, "ddptop launch res")) == {"resnet", "resnet34", "restart.py"}


OFFERED = [
    ("ddptop ", set(FAMILIES)),
    ("ddptop launch ", {*CATALOGUE, "restart.py", "src/"}),
    ("ddptop launch src/", {"src/restore.py"}),
    ("ddptop launch --ba", {"--backend"}),
    ("ddptop launch --backend ", {"gloo", "nccl", "mpi"}),
    ("ddptop launch --world ", set()),
    ("ddptop launch -m src.", {"src.restore"}),
    ("ddptop launch --env DDPTOP_TEST_", {"DDPTOP_TEST_ONLY"}),
    ("ddptop launch --wrld 2 --name ü res", {"resnet", "resnet34", "restart.py"}),
    ("ddptop launch --wrld=2 --ba", {"--backend"}),
    ("ddptop launch --zzz res", {"resnet", "resnet34", "restart.py"}),
    ("ddptop launch restart.py -- --data sr", {"src/"}),
    ("ddptop kill x --signal US", {"USR1", "USR2"}),
    ("ddptop launch --inject ra", {"rank="}),
    ("ddptop help se", {"security", "settings"}),
    ("ddptop completion ", set(LINES)),
]
"""Half a line, and what may stand at its end."""


@pytest.fixture
def complete(project: Path) -> Callable[[str], set[str]]:
    """Complete a line as bash has it asked for, in a fork of a process that has loaded the command line."""

    def offered(line: str) -> set[str]:
        answer = project / "answer"
        answer.touch()
        asked = {
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_SHELL": "bash",
            "_ARGCOMPLETE_IFS": "\n",
            "COMP_TYPE": "9",
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
            "_ARGCOMPLETE_COMP_WORDBREAKS": " \"'><=;|&(:",
            "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
            "DDPTOP_TEST_ONLY": "1",
            "HOME": str(project),
        }
        done = harness.asked({**os.environ, **asked}, cwd=project / "project")
        assert (done.returncode, done.stderr) == (0, "")
        return {found.strip() for found in answer.read_text().splitlines() if found.strip()}

    return offered


def test_what_is_offered(complete: Callable[[str], set[str]]) -> None:
    """Verbs, programs, scripts, options, their choices, modules, variables, files behind `--`, pages and shells.

    An option that is not there, earlier in the line, keeps nothing from being completed.
    """
    assert {line: complete(line) for line, _ in OFFERED} == dict(OFFERED)


def test_runs_are_those_that_the_verb_can_act_on(
    quiet_run: str, ended_run: str, complete: Callable[[str], set[str]]
) -> None:
    """Live ones for a kill, ended ones for a restart, all of them for a look."""
    assert ended_run not in complete("ddptop kill ")
    assert quiet_run in complete("ddptop kill ")
    assert quiet_run not in complete("ddptop restart ")
    assert ended_run in complete("ddptop restart ")
    assert {quiet_run, ended_run} <= complete("ddptop attach ")


def test_the_last_digits_of_a_name_are_completed(runtime: Path) -> None:
    """As that which `find` takes: beside the names, where they begin with what is typed."""
    name = f"toy-{os.urandom(2).hex()}"
    rundir.create(rundir.Run(name, name, "toy", (), 2, "gloo", "cpu", 10**9, True, state="finished", exit_code=0))
    asked = argparse.Namespace(verb="attach")
    digits = name[-4:]
    assert completion._runs(digits[:2], asked)[digits] == f"{name}, finished, toy, 2 ranks"
    assert digits not in completion._runs("", asked)
    assert digits not in completion._runs("to", asked)


def test_signals_are_completed() -> None:
    """By the names that `kill --signal` takes."""
    offered = completion._signals()
    assert {"TERM", "KILL", "USR1", "STOP"} <= set(offered)
    assert all(signals.parse(name) for name in offered)


@pytest.mark.parametrize("typed", ["", "rank=1,", "rank=1,ph", "rank=1,phase=data,ms=30,", "rank=1,nan,"])
def test_what_is_offered_of_an_injection_goes_on_to_one(typed: str) -> None:
    """Each continuation can be typed to the end of what `--inject` takes."""
    offered = completion._injections(typed)
    assert offered
    for each in offered:
        text = f"{each}1" if each.endswith("=") else each
        whole = f"{text},crash" if text == "rank=1" else text
        assert injection.parse(whole).rank == 1


def test_a_completion_is_asked_for_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """An unknown shell, or none, costs one line that names those there are, and exit code 2."""
    from ddptop.tui.cli.main import _parser

    for words in (["completion", "csh"], ["completion"]):
        with pytest.raises(SystemExit) as ended:
            _parser().parse_args(words)
        assert ended.value.code == 2
        error = capfd.readouterr().err
        assert error.count("\n") == 1
        assert "SHELL" in error
