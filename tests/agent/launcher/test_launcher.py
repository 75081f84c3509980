"""The torchrun command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.harness import started, until

from ddptop.agent.launcher import launcher
from ddptop.agent.run.rundir import TORCHRUN, identify, is_alive


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


@pytest.mark.parametrize("first", ["--r=16", "--mo", "-x", "-m", "--", "++key=1", "--nnodes=9", "--rdzv-endpoint"])
def test_torchrun_takes_no_argument_of_the_program_for_its_own(first: str) -> None:
    """Torchrun's own parser hands the program all that stands behind it, whatever it looks like."""
    words = launcher.command("train.py", (first, "--role", "--", "5"), 3)
    from torch.distributed.run import get_args_parser

    found = get_args_parser().parse_args(words[words.index(TORCHRUN) + 1 :])
    assert found.training_script == launcher.RUNNER
    assert found.training_script_args == ["train.py", first, "--role", "--", "5"]
    assert (found.nproc_per_node, found.nnodes) == ("3", get_args_parser().get_default("nnodes"))


def test_a_torchrun_some_of_whose_threads_live_has_no_exit_code_yet(tmp_path: Path) -> None:
    """A killed process loses its first thread before the others: nobody takes it for one that has ended with 0."""
    script = (
        "import ctypes, os, sys, threading, time\n"
        "def other():\n"
        "    while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
        "    os._exit(7)\n"
        "threading.Thread(target=other).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with started(sys.executable, "-c", script, tmp_path / "go") as child:
        me = identify(child.pid)
        assert me is not None
        # As in an observer that has begun anew and has no `Popen` of its child.
        torchrun = launcher.Torchrun(me)
        until(lambda: not is_alive(me), "its first thread has ended")
        assert (torchrun.is_over(), torchrun.exit_code) == (False, None)
        (tmp_path / "go").touch()
        until(torchrun.is_over, "it is over")
        assert torchrun.exit_code == 7
