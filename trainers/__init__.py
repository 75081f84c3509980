"""The catalogue of training programs: one line on each, for lists, menus and `ddptop launch`.

Imports nothing heavy: it is read by the command line and the dashboard, which never load torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Program:
    """A training program that `ddptop launch NAME` starts."""

    name: str
    module: str
    """Importable name, run as `python -m MODULE`."""
    technique: str
    """What it shows, one line."""
    source: str
    """The paper or course that it follows."""
    defaults: str
    """What it trains when nothing is asked for, one line."""
    resumes: bool = True
    """True where it takes `--resume`, to go on from its last checkpoint."""


def _by_name(programs: Iterable[Program]) -> dict[str, Program]:
    return {program.name: program for program in programs}


CATALOGUE: Final[dict[str, Program]] = _by_name(
    (
        Program(
            name="resnet",
            module="ddptop.trainers.resnet",
            technique="data parallel training of a residual network: gradients averaged in buckets during backward",
            source="He et al. 2015, Deep Residual Learning; Li et al. 2020, PyTorch Distributed",
            defaults="ResNet-18 on CIFAR-10; a GPU: 32 px, batch 128, 10 epochs; CPU: 16 px, batch 6, 3 short epochs",
        ),
        Program(
            name="simplenet",
            module="ddptop.trainers.simplenet",
            technique="data parallel training at its smallest: one linear layer, one bucket, one all-reduce a step",
            source="PyTorch tutorial, Getting Started with Distributed Data Parallel; LeCun et al. 1998 (MNIST)",
            defaults="28*28 -> 10 linear on MNIST, SGD 0.01, batch 64, 5 epochs",
        ),
    )
)
