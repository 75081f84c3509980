"""A rank that is slowed down on purpose, for the techniques against slow ranks.

The rank sleeps instead of computing: it resembles a rank on a slower device, and takes no core from the others.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from ddptop.trainers.rank.group import Position
from ddptop.trainers.rank.options import positive_number, whole_number
from ddptop.trainers.rank.refusal import Refusal


@dataclass(frozen=True)
class Slowness:
    """The slow rank and the amount of its slowness: `RANK:AMOUNT` on the command line."""

    rank: int
    amount: float

    @classmethod
    def read(cls, text: str) -> Slowness:
        """Return the slowness that a text spells; a type of argparse."""
        rank, colon, amount = text.partition(":")
        if not colon:
            raise argparse.ArgumentTypeError(f"must be a rank and an amount, like 1:50, not {text!r}")
        return cls(whole_number(0)(rank), positive_number(amount))

    def check(self, position: Position, first: int = 0) -> None:
        """Raise `Refusal` for a rank that does not exist, or that is below `first` and does not train."""
        if not first <= self.rank < position.world:
            raise Refusal(f"--slow {self.rank}:{self.amount:g}: training are the ranks {first} to {position.world - 1}")


def delay(model: nn.Module, delay_s: Callable[[float], float]) -> None:
    """Make a model sleep after each forward pass in training.

    Args:
        delay_s: returns the seconds to sleep for the seconds that the pass took.
    """
    begun = 0.0

    def begin(*_: object) -> None:
        nonlocal begun
        begun = time.perf_counter()

    def end(module: nn.Module, *_: object) -> None:
        if module.training:
            time.sleep(delay_s(time.perf_counter() - begun))

    model.register_forward_pre_hook(begin)
    model.register_forward_hook(end)
