"""Modules whose graphs note, in the backward pass, which module is said to be under way."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.inspection.looks.modules import Modules
from ddptop.agent.rank.records.stamps import BACKWARD, Stamps


class Marked:
    """Modules that are marked, or not, and what is seen in their backward passes."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.stamps = Stamps(itertools.count(step=10**9).__next__)
        self.step = 0
        self.modules = Modules(self.stamps, self.faults)
        self.seen: list[tuple[str, tuple[str, ...]]] = []
        """A place of the graph, and the module that was said there."""

    def begin(self) -> None:
        """Mark from now on."""
        self.modules.begin()
        self.cut()

    def end(self) -> None:
        """Cease."""
        self.modules.end()
        self.cut()

    def cut(self) -> None:
        """End a step."""
        self.step += 1
        self.modules.boundary(self.step)

    def backward(self, loss: torch.Tensor) -> None:
        """Run a backward pass, as the hooks of the agent see it."""
        self.stamps.enter(BACKWARD)
        loss.backward()
        self.stamps.leave()


class Spy(torch.autograd.Function):
    """Passes a tensor on, and notes in the backward pass which module is said."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, note: Callable[[], None]) -> torch.Tensor:
        ctx.note = note
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.note()
        return grads[0], None


class Layer(nn.Module):
    """A linear layer of a module's own between two places."""

    def __init__(self, name: str, marked: Marked) -> None:
        super().__init__()
        self.name, self.marked = name, marked
        self.inner = nn.Linear(4, 4)

    def spy(self, value: torch.Tensor, place: str) -> torch.Tensor:
        def note() -> None:
            self.marked.seen.append((place, self.marked.modules.present))

        spied: torch.Tensor = Spy.apply(value, note)
        return spied

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = self.spy(value, f"{self.name} before")
        return self.spy(self.inner(value), f"{self.name} behind")


class Net(nn.Module):
    """Two layers, with operators of the whole before, between and behind them."""

    def __init__(self, marked: Marked) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer("0", marked), Layer("1", marked)])
        self.head = Layer("head", marked)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = self.head.spy(value.tanh(), "net")
        for layer in self.layers:
            value = value + layer(value)
        return self.head.spy(self.head(value.tanh()).tanh(), "end")


class Wrapped(nn.Module):
    """Calls another module, as DDP does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.module = inner

    def forward(self, *args: Any) -> Any:
        return self.module(*args)


class Odd(nn.Module):
    """Takes and gives what is no tensor, too."""

    def forward(self, value: Any) -> Any:
        tensor = value["x"]
        return {"x": [tensor.exp(), (tensor.detach(), None)], "y": "text", "z": object()}


class Refuses(torch.Tensor):
    """A tensor of the script's own, of which nobody may read anything."""

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("read by somebody")
