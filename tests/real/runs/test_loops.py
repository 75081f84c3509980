"""Training loops that are unlike those of the catalogue, two ranks each: what `status` says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.harness import DEADLINE_S, ddptop, status, write_script
from support.processes.ranks import observed

IN_A_THREAD = """
import threading, time
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
def train():
    model = nn.parallel.DistributedDataParallel(nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, in DataLoader(TensorDataset(torch.randn(6400, 256)), batch_size=64):
        optimizer.zero_grad()
        loss = model(images).square().mean()
        if dist.get_rank() == 1:
            time.sleep(0.02)
        loss.backward()
        optimizer.step()
    print(f"loss of rank {dist.get_rank()}: {loss.item()}\\n", end="")
thread = threading.Thread(target=train)
thread.start()
thread.join()
dist.destroy_process_group()
"""

TENSOR_PARALLEL = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("cpu", (2,))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for step in range(100):
    optimizer.zero_grad()
    model(torch.ones(4, 16)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""

ACCUMULATING = """
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for step in range(50):
    for tokens in (8, 12, 10, 10):
        # As Trainer does: the number is that of all micro-batches.
        (model(torch.ones(tokens, 16)).square().sum() / 40).backward()
    optimizer.step()
dist.destroy_process_group()
"""

FSDP2 = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
for layer in (model[0], model[2], model):
    fully_shard(layer)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for step in range(50):
    loss = model(torch.ones(4, 64)).square().mean()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.detach())
dist.destroy_process_group()
"""


def ended(folder: Path, script: str, name: str) -> tuple[str, dict[str, Any]]:
    """Return what the ranks of a script printed, and its last status."""
    with observed(name, write_script(folder, script)) as (_, ranks):
        assert ranks.wait(3 * DEADLINE_S) == 0, ranks.said
    return ranks.said, status(name)


def test_a_training_in_a_thread_of_its_own_is_seen_as_one_in_the_main_thread(tmp_path):
    """Each phase, the loss, and rank 1's forward pass, for which rank 0 waits."""
    said, told = ended(tmp_path, IN_A_THREAD, "thread")
    assert [rank["step"] for rank in told["ranks"]] == [100, 100]
    quick, slow = (rank["phases_ms"] for rank in told["ranks"])
    assert all(phases[name] for phases in (quick, slow) for name in ("data", "forward", "backward", "optimizer"))
    assert quick["wait"] > 10 > slow["wait"]
    assert slow["forward"] >= 20 > quick["forward"]
    loss = float(said.split("loss of rank 0: ")[1].split()[0])
    assert told["ranks"][0]["loss"] == pytest.approx(loss, rel=1e-5)


def test_a_phase_that_is_never_seen_is_not_known(tmp_path):
    """Tensor parallelism without a loader: its forward pass and its data may be any part of the rest, and are no 0."""
    _, told = ended(tmp_path, TENSOR_PARALLEL, "parallel")
    assert told["backend"] == "gloo"
    for rank in told["ranks"]:
        phases = rank["phases_ms"]
        assert phases["data"] is None
        assert phases["forward"] is None
        assert phases["backward"] > 0
        assert phases["other"] > 0


def test_a_loss_that_may_be_a_part_of_the_scripts_is_marked(tmp_path):
    """Four micro-batches, each divided by something else than 4: `~` before the loss, and why in `status --json`."""
    _, told = ended(tmp_path, ACCUMULATING, "accumulating")
    assert [rank["is_loss_unsure"] for rank in told["ranks"]] == [True, True]
    assert "loss ~" in ddptop("status", "accumulating").stdout


def test_of_fsdp2_the_latency_of_its_own_collectives_is_told(tmp_path):
    """It all-gathers and reduces by scattering; the all-reduce of the loss is the lesser part."""
    _, told = ended(tmp_path, FSDP2, "sharded")
    for rank in told["ranks"]:
        assert rank["collective_ms"]["op"] in ("all_gather", "reduce_scatter")
        assert rank["collective_ms"]["p99"] >= rank["collective_ms"]["p50"] > 0
        assert rank["allreduce_ms"]["p50"] > 0
    assert len({rank["collective_ms"]["op"] for rank in told["ranks"]}) == 1
