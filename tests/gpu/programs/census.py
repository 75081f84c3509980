"""Keeps a tensor of each step on the device, and reports what the agent says of it, and of a device that is full."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from support.gpu.measuring import Rank, network

from ddptop.agent import wire

MOST = 300
"""Steps, each of which keeps 1 MiB."""
TOO_MUCH = 1 << 42


def main() -> None:
    """Ask for two censuses as the observer does, over three steps, and then for more memory than there is."""
    rank = Rank()
    session: Any = rank._session
    model = rank.wrapped(network(64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    kept: list[torch.Tensor] = []
    use: wire.MemoryUse | None = None
    command: wire.Memory | None = None
    while use is None and len(kept) < MOST:
        model(torch.randn(8, 64).to(rank.device)).square().mean().backward()
        kept.append(torch.ones(256, 1024, device=rank.device))
        optimizer.step()
        optimizer.zero_grad()
        completed = session.gate.completed
        if completed >= 3:
            command = command or wire.Memory(0, "test", 1, completed + 2, 3)
            use = session.diagnoses.censuses.ask(command, completed)
    assert use is not None
    events: list[str] = []
    if rank.on_cuda:
        session.diagnoses.fullness._notify = lambda text, level: events.append(text)
        rank.facts()
        try:
            torch.empty(TOO_MUCH, dtype=torch.uint8, device=rank.device)
        except torch.cuda.OutOfMemoryError:
            events.append("torch raises its own error")
    rank.report(
        kind=msgspec.structs.asdict(use.kinds[0]),
        devices=[msgspec.structs.asdict(each) for each in use.devices],
        events=events,
    )


main()
