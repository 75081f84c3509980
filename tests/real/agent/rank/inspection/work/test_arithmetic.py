"""The operations of a step of a rank that has a part of the model, by processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddptop.agent.rank.inspection.work import arithmetic

_SHARDED = """
import sys, torch
from torch.testing._internal.distributed.fake_pg import FakeStore
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.ReLU(), torch.nn.Linear(40, 16))
if sys.argv[2] == "tensor":
    parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
else:
    from torch.distributed.fsdp import fully_shard
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
rows = torch.randn(7, 24)
step = lambda: model(rows).square().mean().backward()
step()
observer = torch.profiler.ExecutionTraceObserver().register_callback(sys.argv[1])
observer.start(); step(); observer.unregister_callback()
"""


@pytest.mark.parametrize(("way", "part"), [("tensor", 2), ("fully sharded", 1)])
def test_a_rank_counts_what_it_computes_itself(tmp_path: Path, way: str, part: int) -> None:
    """Of products of two halves each rank computes one; of FSDP2's each rank has all, with its own rows."""
    file = tmp_path / "trace.json"
    given = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    subprocess.run([sys.executable, "-c", _SHARDED, str(file), way], check=True, env=given)
    # The first has no gradient of its input.
    expected = (2 * 2 * 7 * 24 * 40 + 3 * 2 * 7 * 40 * 16) // part
    found = arithmetic.read(file.read_bytes().splitlines(keepends=True))
    assert found is not None
    assert found.flops == expected
