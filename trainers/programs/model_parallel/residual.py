"""A deep network of equal layers, split into stages; this module knows no schedules.

Source: He et al. 2016, Identity Mappings in Deep Residual Networks (normalization first in each branch).
"""

from __future__ import annotations

import time
from typing import Any, Final

import torch
from torch import nn
from torch.nn.functional import gelu

from ddptop.trainers.training.data import MNIST

LAYERS: Final = 24
WIDTH: Final = 64


class Layer(nn.Module):
    """One residual layer of the network; all are equal, so that stages are equal too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return (batch, WIDTH) for (batch, WIDTH)."""
        out: torch.Tensor = values + gelu(self.linear(self.norm(values)))
        return out


class Pace(torch.autograd.Function):
    """Sleeps as long as a device would compute: some seconds in forward, twice as long in backward."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, seconds: float) -> torch.Tensor:
        """Return the values unchanged, later."""
        ctx.seconds = seconds
        time.sleep(seconds)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient unchanged, later."""
        time.sleep(2 * ctx.seconds)
        return gradients[0], None


class Piece(nn.Module):
    """The consecutive layers of one stage.

    Args:
        image_s: seconds for an image in forward; 0 for no sleep.
    """

    def __init__(self, layers: dict[str, nn.Module], image_s: float) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self._image_s = image_s

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the output of the last layer."""
        for layer in self.layers.values():
            values = layer(values)
        if self._image_s and self.training:
            values = Pace.apply(values, len(values) * self._image_s)
        return values


def pieces(rank: int, ranks: int, each: int, device_ms: float) -> nn.ModuleDict:
    """Return the stages of a rank by number: `each` of them, assigned in turn so that they are far apart.

    Every rank builds the whole network and uses its part, so that the initial numbers do not depend on the split.
    """
    stages = ranks * each
    layers: list[tuple[str, nn.Module]] = [(f"layer{number}", Layer()) for number in range(LAYERS)]
    embedding = nn.Sequential(nn.Flatten(), nn.Linear(MNIST.size * MNIST.size, WIDTH))
    classes = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, MNIST.classes))
    own = nn.ModuleDict()
    for number in range(rank, stages, ranks):
        part = layers[number * LAYERS // stages : (number + 1) * LAYERS // stages]
        first = [("embedding", embedding)] if number == 0 else []
        last = [("classes", classes)] if number == stages - 1 else []
        own[str(number)] = Piece(dict([*first, *part, *last]), device_ms / 1000 / stages)
    return own
