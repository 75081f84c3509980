"""A launch inside an allocation of Slurm: what cannot work is refused in one line, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddptop.agent.client.start import slurm
from ddptop.agent.client.start.request import Request, RequestError
from ddptop.agent.client.start.slurm import Allocation

TWO = Allocation("7", ("node1", "node2"))
GIVEN = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]"}


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's commands, which know of two hosts."""
    for name in ("srun", "scontrol"):
        (tmp_path / name).write_text("#!/bin/sh\necho node1\necho node2\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


@pytest.mark.usefixtures("commands")
def test_an_allocation_is_needed_that_is_large_enough() -> None:
    """Who has none is told how to get one."""
    with pytest.raises(RequestError, match="no allocation here: get one by `salloc --nodes 2`"):
        slurm.allocation({}, None)
    with pytest.raises(RequestError, match="--nodes 3: job 7 has 2 nodes"):
        slurm.allocation(GIVEN, 3)
    assert slurm.allocation(GIVEN, None) == TWO


@pytest.mark.parametrize(
    ("request_", "tasks", "said"),
    [
        (Request("train.py", rdzv_id="x"), None, "--rdzv-id: --slurm finds that out"),
        (Request("train.py", nnodes="2"), None, "--nnodes: --slurm finds that out"),
        (Request("train.py", nproc_per_node=2), 1, "--ntasks-per-node 1: --nproc-per-node says 2"),
    ],
)
def test_options_that_contradict_the_allocation_are_refused(request_: Request, tasks: int | None, said: str) -> None:
    """With the options to use instead, or with the number that the other option gives."""
    with pytest.raises(RequestError, match=said):
        slurm.request_for(request_, TWO, tasks, {})
    found = slurm.request_for(Request("train.py"), TWO, 4, {})
    assert (found.nnodes, found.nproc_per_node, found.rdzv_id) == ("2", 4, "7")
