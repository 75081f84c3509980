"""The torchrun command line."""

from __future__ import annotations

import pytest

from ddptop.agent.observer.engine import launcher


@pytest.mark.parametrize(
    ("program", "target"),
    [
        ("train.py", ("train.py",)),
        ("my dir/train.py", ("my dir/train.py",)),
        ("-m package.train", ("-m", "package.train")),
        ("-odd.py", ("./-odd.py",)),
    ],
)
def test_program_follows_the_runner(program: str, target: tuple[str, ...]) -> None:
    """What the user named comes right behind the runner, with the arguments as they are."""
    command = launcher.command(program, ("--lr", "", "a b", "--"), 3)
    assert command[command.index(launcher.RUNNER) + 1 :] == (*target, "--lr", "", "a b", "--")
    assert "--nproc-per-node=3" in command
