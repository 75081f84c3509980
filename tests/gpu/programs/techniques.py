"""One technique after the other, a few steps each from the same seed: losses, and the agent's records of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from support.gpu.measuring import Rank, network
from torch import nn
from torch.utils.checkpoint import checkpoint

STEPS = 6
WIDTH = 64
Step = Callable[[torch.Tensor], torch.Tensor]
"""Makes one optimizer step of a batch and returns its loss."""


class Checkpointed(nn.Module):
    """A net whose activations are computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(network(WIDTH, 2) for _ in range(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs."""
        for part in self.parts:
            inputs = checkpoint(part, inputs, use_reentrant=False)
        return inputs


def plain(rank: Rank, model: nn.Module | None = None, mixed: Any = None) -> Step:
    """DDP, and what a model of its own or a mixed precision make of it."""
    wrapped = rank.wrapped(model or network(WIDTH))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-2)

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with mixed or nullcontext():
            loss: torch.Tensor = wrapped(batch).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def scaler(rank: Rank) -> Step:
    """GradScaler under float16, or what the CPU has of it, with a clipped norm; the third step is skipped."""
    wrapped = rank.wrapped(network(WIDTH))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-2)
    scaling = torch.amp.GradScaler(rank.options.device, init_scale=256.0)
    count = 0

    def step(batch: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        optimizer.zero_grad()
        with torch.autocast(rank.options.device, torch.float16 if rank.on_cuda else torch.bfloat16):
            loss: torch.Tensor = wrapped(batch).float().square().mean()
        scaling.scale(loss * float("inf") if count == 3 else loss).backward()
        scaling.unscale_(optimizer)
        nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        scaling.step(optimizer)
        scaling.update()
        return loss.detach()

    return step


def bf16(rank: Rank) -> Step:
    """Autocast to bfloat16."""
    return plain(rank, mixed=torch.autocast(rank.options.device, torch.bfloat16))


def compiled(rank: Rank) -> Step:
    """torch.compile, by Inductor on a device."""
    model = rank.wrapped(network(WIDTH))
    compiled_model: Any = torch.compile(model, backend="inductor" if rank.on_cuda else "aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = compiled_model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def graphs(rank: Rank) -> Step:
    """CUDA graphs: forward and backward are captured, then replayed; the batch is copied into the graph's input."""
    model = network(WIDTH).to(rank.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    captured: Any = torch.cuda.make_graphed_callables(model, (torch.randn(32, WIDTH, device=rank.device),))

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = captured(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def whole_graph(rank: Rank) -> Step:
    """A whole step in one CUDA graph, captured by the script itself, the optimizer apart."""
    model = network(WIDTH).to(rank.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    held = torch.randn(32, WIDTH, device=rank.device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(held).square().mean().backward()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss: torch.Tensor = model(held).square().mean()
        loss.backward()

    def step(batch: torch.Tensor) -> torch.Tensor:
        held.copy_(batch)
        graph.replay()
        optimizer.step()
        return loss.detach().clone()

    return step


def checkpointing(rank: Rank) -> Step:
    """Activation checkpointing."""
    return plain(rank, Checkpointed())


def fsdp2(rank: Rank) -> Step:
    """FSDP2, each layer sharded by itself."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = network(WIDTH).to(rank.device)
    mesh = init_device_mesh(rank.options.device, (rank.world,))
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


ALWAYS: tuple[Callable[[Rank], Step], ...] = (plain, scaler, bf16, compiled, checkpointing, fsdp2)
ON_CUDA: tuple[Callable[[Rank], Step], ...] = (graphs, whole_graph)


def main() -> None:
    """Report losses and records by technique, and those that have failed."""
    rank = Rank()
    found: dict[str, Any] = {}
    for technique in (*ALWAYS, *(ON_CUDA if rank.on_cuda else ())):
        torch.manual_seed(1)
        before = rank.steps
        try:
            step = technique(rank)
            batches = [torch.randn(32, WIDTH) for _ in range(STEPS)]
            losses = [step(batch.to(rank.device)).item() for batch in batches]
        except Exception as error:
            # The others are tried all the same; what failed is named by the test.
            print(f"{technique.__name__}: {error}", file=sys.stderr)
            found[technique.__name__] = {"problem": f"{type(error).__name__}: {error}"[:2000]}
            continue
        records = rank.records(before + STEPS)[before:]
        found[technique.__name__] = {"losses": losses, "records": records}
    rank.report(techniques=found)


main()
