"""The work of real runs of two ranks: tokens, samples and operations, as `status` says them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.harness import DEADLINE_S, ddptop, status, until, write_script
from support.processes.ranks import observed

if TYPE_CHECKING:
    from pathlib import Path

WIDTH, HEADS, LENGTH, WORDS, ROWS, PASSES = 32, 4, 16, 50, 4, 2

TRANSFORMER = f"""
import contextlib, time
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Text(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        words = torch.arange(index, index + {LENGTH} + 1) % {WORDS}
        return words[:-1], words[1:]

dist.init_process_group("gloo")
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer({WIDTH}, {HEADS}, {4 * WIDTH}, dropout=0.0, batch_first=True, norm_first=True)
net = nn.Sequential(nn.Embedding({WORDS}, {WIDTH}), layer, nn.Linear({WIDTH}, {WORDS}))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters())
batches = iter(DataLoader(Text(), batch_size={ROWS}))
for step in range(160):
    for part in range({PASSES}):
        words, following = next(batches)
        with model.no_sync() if part + 1 < {PASSES} else contextlib.nullcontext():
            nn.functional.cross_entropy(model(words).flatten(0, 1), following.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 9:
        with torch.no_grad():
            model(words)
    time.sleep(0.03)
dist.destroy_process_group()
"""

WITHOUT_A_LOADER = """
import time
import torch, torch.distributed as dist
from torch import nn
from ddptop import agent

dist.init_process_group("gloo")
agent.start(samples=5, tokens=70)
model = nn.parallel.DistributedDataParallel(nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(160):
    model(torch.ones(7, 16)).square().mean().backward()
    optimizer.step()
    time.sleep(0.03)
dist.destroy_process_group()
"""


def reported(folder: Path, script: str, name: str) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Return the status of a run once the work of its ranks is known, its lines for people, and its last status."""
    with observed(name, write_script(folder, script)) as (_, ranks):

        def known() -> dict[str, Any] | None:
            found: dict[str, Any] = status(name)
            has_all = all(rank["flops"] and rank["tokens_per_s"] for rank in found["ranks"])
            return found if has_all and found["tokens_per_s"] else None

        found = until(known, "the work of both ranks")
        lines = ddptop("status", name).stdout
        assert ranks.wait(3 * DEADLINE_S) == 0, ranks.said
    assert found is not None
    return found, lines, status(name)


def of_a_step(rank: dict[str, Any], name: str) -> float:
    """Return the samples, tokens or operations of a step, from those of a second."""
    return float(rank[name] * rank["step_ms"] / 1e3)


def test_a_transformer_with_accumulation(tmp_path: Path) -> None:
    """Tokens of all micro-batches and ranks; operations by hand; no MFU of a CPU; no error of the agent."""
    found, lines, last = reported(tmp_path, TRANSFORMER, "text")
    tokens = ROWS * LENGTH
    forward = 2 * tokens * (12 * WIDTH**2 + WIDTH * WORDS) + 4 * tokens * LENGTH * WIDTH
    for rank in found["ranks"]:
        assert of_a_step(rank, "samples_per_s") == pytest.approx(PASSES * ROWS)
        assert of_a_step(rank, "tokens_per_s") == pytest.approx(PASSES * tokens)
        assert rank["flops"] == PASSES * 3 * forward
        assert of_a_step(rank, "flops_per_s") == pytest.approx(rank["flops"])
        assert rank["mfu"] is None
    for name in ("samples_per_s", "tokens_per_s", "flops_per_s"):
        assert found[name] == pytest.approx(sum(rank[name] for rank in found["ranks"]), rel=1e-3)
    assert found["mfu"] is None
    assert "tokens/s" in lines
    assert "samples/s" not in lines
    assert "MFU" not in lines
    assert [rank["fault"] for rank in last["ranks"]] == [None, None]
    assert [rank["flops"] for rank in last["ranks"]] == [PASSES * 3 * forward] * 2


def test_a_script_without_a_loader_says_it_by_itself(tmp_path: Path) -> None:
    """What `agent.start` was given is that of each step of each rank."""
    found, _, _ = reported(tmp_path, WITHOUT_A_LOADER, "given")
    for rank in found["ranks"]:
        assert of_a_step(rank, "samples_per_s") == pytest.approx(5)
        assert of_a_step(rank, "tokens_per_s") == pytest.approx(70)
        # Forward and the gradient of the weight.
        assert rank["flops"] == 2 * 2 * 7 * 16 * 4
