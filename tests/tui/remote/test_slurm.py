"""`attach --slurm`, with programs that stand in for Slurm's: what it starts, and what it says is missing."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import pytest
from support.harness import ddptop

from ddptop.tui.remote import slurm
from ddptop.tui.remote.target import Unreachable

STEP = """
options=
while [ "${1#--}" != "$1" ]; do options="$options $1"; shift; done
echo "$options"
exec "$@"
"""
"""An srun that does on this machine what it is to do on the node."""


def _cluster(folder: Path, monkeypatch: pytest.MonkeyPatch, queue: str, step: str = "") -> None:
    """Put an squeue and an srun on the PATH."""
    for name, text in (("squeue", queue), ("srun", step)):
        file = folder / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_attach_runs_as_an_overlapping_step_on_the_first_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is told who asks, and its exit code is that of the verb."""
    line = f"RUNNING|{getpass.getuser()}|gpu-17|gpu-[17-18]"
    _cluster(tmp_path, monkeypatch, f"echo '{line}'", STEP)
    (tmp_path / "there").write_text('#!/bin/sh\necho "$DDPTOP_FROM" "$@"; exit 7\n')
    (tmp_path / "there").chmod(0o755)
    done = ddptop("attach", "resnet-7f", "--slurm", "4711", "--plain", "--remote-command", str(tmp_path / "there"))
    assert done.returncode == 7, done.stderr
    options, verb = done.stdout.splitlines()
    words = {"--jobid=4711", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=gpu-17", "--export=ALL"}
    assert words <= set(options.split())
    assert "--pty" not in options
    assert verb.startswith(f"{getpass.getuser()}@")
    assert verb.endswith("/srun attach resnet-7f --plain")
    absent = ddptop("attach", "--slurm=4711", "--remote-command", "/opt/ddptop", "--plain")
    assert absent.returncode == 2
    assert absent.stderr.startswith("ddptop: gpu-17: no `/opt/ddptop` there; name it: --remote-command")


def test_without_a_command_it_is_the_ddptop_of_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which looks for the run on the node."""
    _cluster(tmp_path, monkeypatch, f"echo 'RUNNING|{getpass.getuser()}|gpu-17|gpu-17'", STEP)
    done = ddptop("attach", "no-such-run", "--slurm", "4711", "--plain")
    assert done.returncode == 2
    assert done.stderr.startswith("ddptop: run 'no-such-run': no such run")


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
