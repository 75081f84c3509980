"""`attach --slurm`, with programs that stand in for Slurm's: what it starts, and what it says is missing."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

import pytest
from support.harness import ddptop

from ddptop.tui.remote import slurm
from ddptop.tui.remote.unreachable import Unreachable


def _cluster(folder: Path, monkeypatch: pytest.MonkeyPatch, queue: str, step: str = 'echo "$@"') -> None:
    """Put an squeue and an srun on the PATH."""
    for name, text in (("squeue", queue), ("srun", step)):
        file = folder / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_attach_runs_as_an_overlapping_step_on_the_first_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is told who asks, runs this Python's ddptop, and its exit code is that of the verb."""
    line = f"RUNNING|{getpass.getuser()}|gpu-17|gpu-[17-18]"
    _cluster(tmp_path, monkeypatch, f"echo '{line}'", 'echo "$@"; exit 7')
    done = ddptop("attach", "resnet-7f", "--slurm", "4711", "--plain")
    assert done.returncode == 7, done.stderr
    words = done.stdout.split()
    assert {"--jobid=4711", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=gpu-17"} <= set(words)
    assert "--pty" not in words
    assert words[words.index(sys.executable) :] == [
        sys.executable, "-m", "ddptop.tui.cli.main", "attach", "resnet-7f", "--plain",
    ]  # fmt: skip
    assert any(word.startswith(f"--export=ALL,DDPTOP_FROM={getpass.getuser()}@") for word in words)
    named = ddptop("attach", "--slurm=4711", "--remote-command", "/opt/dd top", "--plain")
    assert named.stdout.split()[-4:] == ["/opt/dd", "top", "attach", "--plain"]


@pytest.mark.parametrize(
    ("queue", "told"),
    [
        (
            "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
            "no such job (Invalid job id specified)",
        ),
        ("exit 0", "no such job (it is over, or was never there)"),
        (f"echo 'PENDING|{getpass.getuser()}|n/a|'", "it does not run (pending)"),
        ("echo 'RUNNING|somebody|gpu-17|gpu-17'", "it is a job of somebody"),
        (f"echo 'RUNNING|{getpass.getuser()}|-w|x'", "its first node is not known"),
    ],
)
def test_what_is_missing_is_said(queue: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, with the number of the job."""
    _cluster(tmp_path, monkeypatch, queue)
    with pytest.raises(Unreachable) as refused:
        slurm.job("4711")
    assert str(refused.value).startswith(f"--slurm 4711: {told}")


def test_a_number_is_given_and_slurm_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no number never gets to a program of Slurm's."""
    with pytest.raises(Unreachable, match="give the number of a job"):
        slurm.job("--all")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable, match="no squeue on this machine"):
        slurm.job("4711")
