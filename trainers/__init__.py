"""The catalogue of training programs: one line on each, for lists, menus and `ddptop launch`.

It imports only the standard library, because the command line and the dashboard, which do not load torch, read it.

programs  a page for each program, by subject
training  the training loop and its parts
rank      the start of a rank from its command line
handmade  collectives written by hand
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
    """The technique that it shows, one line."""
    source: str
    """The paper or course that it follows."""
    defaults: str
    """Model, data and hyperparameters without options, one line."""
    resumes: bool = True
    """True where it has the option `--resume`, to go on from its last checkpoint."""


def _by_name(programs: Iterable[Program]) -> dict[str, Program]:
    return {program.name: program for program in programs}


CATALOGUE: Final[dict[str, Program]] = _by_name(
    (
        Program(
            name="simplenet",
            module="ddptop.trainers.programs.data_parallel.simplenet",
            technique="data parallel training at its smallest: one linear layer, one bucket, one all-reduce a step",
            source="PyTorch tutorial, Getting Started with Distributed Data Parallel; LeCun et al. 1998 (MNIST)",
            defaults="28*28 -> 10 linear on MNIST, SGD 0.01, batch 64, 5 epochs",
        ),
        Program(
            name="convnet",
            module="ddptop.trainers.programs.data_parallel.convnet",
            technique="data parallel training with batch normalization, whose statistics DDP broadcasts in each step",
            source="Y. Yang 2019, Distributed data parallel training in PyTorch; Ioffe and Szegedy 2015",
            defaults="two 5x5 convolutions on MNIST, SGD 0.0001, batch 100, 2 epochs; CPU: a third of the images",
        ),
        Program(
            name="mymodel",
            module="ddptop.trainers.programs.data_parallel.mymodel",
            technique="one process for all GPUs (nn.DataParallel) against a process for each (DDP), on the same data",
            source="PyTorch tutorials, Training a Classifier and Getting Started with Distributed Data Parallel",
            defaults="two 3x3 convolutions on CIFAR-10, Adam 0.001; GPU: batch 64, 5 epochs; CPU: 32, 3 short epochs",
        ),
        Program(
            name="resnet",
            module="ddptop.trainers.programs.data_parallel.resnet",
            technique="data parallel training of a residual network: gradients averaged in buckets during backward",
            source="He et al. 2015, Deep Residual Learning; Li et al. 2020, PyTorch Distributed",
            defaults="ResNet-18 on CIFAR-10; a GPU: 32 px, batch 128, 10 epochs; CPU: 16 px, batch 6, 3 short epochs",
        ),
        Program(
            name="resnet34",
            module="ddptop.trainers.programs.data_parallel.resnet34",
            technique="DDP reimplemented by hand: gradients averaged after backward, at a root or in a ring",
            source="He et al. 2015, Deep Residual Learning; Li et al. 2020, PyTorch Distributed, section 3",
            defaults="ResNet-34 on CIFAR-10, AdamW 0.001; GPU: batch 128, 10 epochs; CPU: width 16, 3 short epochs",
        ),
        Program(
            name="accumulate",
            module="ddptop.trainers.programs.data_parallel.accumulate",
            technique="a large batch in small pieces: accumulation under no_sync, clipping, warm-up, mixed precision",
            source="PyTorch, DistributedDataParallel.no_sync; Goyal et al. 2017; Micikevicius et al. 2018",
            defaults="one convolution on MNIST, SGD 0.1, batch 128 in 4 pieces, 3 epochs of 20,000 images",
        ),
        Program(
            name="paramserver",
            module="ddptop.trainers.programs.asynchronous.paramserver",
            technique="asynchronous training: workers push gradients to servers, and wait for no other worker",
            source="Li et al. 2014, Parameter Server; Ho et al. 2013, Stale Synchronous Parallel",
            defaults="a perceptron on MNIST, SGD 0.05, batch 64, 1 server; GPU: 3 epochs; CPU: 3 short epochs",
        ),
        Program(
            name="rebalance",
            module="ddptop.trainers.programs.data_parallel.rebalance",
            technique="dynamic load balancing: each rank's share of the global batch follows its measured speed",
            source="Chen et al. 2020, Semi-Dynamic Load Balancing; PyTorch, DDP Communication Hooks",
            defaults="two convolutions on MNIST, SGD 0.05; GPU: batch 64, 3 epochs; CPU: 32, 3 short epochs",
        ),
        Program(
            name="pipeline",
            module="ddptop.trainers.programs.model_parallel.pipeline",
            technique="pipeline parallelism: layers split over ranks, a batch flows through them in microbatches",
            source="Huang et al. 2019, GPipe; Narayanan et al. 2019, PipeDream, and 2021, Megatron-LM",
            defaults="24 layers on MNIST, 1F1B, 8 microbatches; GPU: batch 512, 5 epochs; CPU: 32, 3 short epochs",
        ),
        Program(
            name="tensor",
            module="ddptop.trainers.programs.model_parallel.tensor",
            technique="tensor parallelism: every rank holds some columns and rows of the weights, and all images",
            source="Shoeybi et al. 2019, Megatron-LM; PyTorch tutorial, Tensor Parallel",
            defaults="a vision transformer on MNIST, AdamW; GPU: batch 256, 5 epochs; CPU: 32, 3 short epochs",
        ),
        Program(
            name="hybrid",
            module="ddptop.trainers.programs.model_parallel.hybrid",
            technique="data parallel times tensor parallel: rows of a grid of ranks hold a model, columns average",
            source="Narayanan et al. 2021, Megatron-LM on GPU clusters; PyTorch recipe, DeviceMesh",
            defaults="the transformer of tensor, rows of 2 ranks",
        ),
        Program(
            name="toy",
            module="ddptop.trainers.programs.primitives.toy",
            technique="an all-reduce of gradients to be checked in one's head: 4 and 2, in sum 6, so 2.0 becomes 1.4",
            source="PyTorch tutorial, Writing Distributed Applications with PyTorch",
            defaults="one parameter, inputs 0 and 1, learning rate 0.1, 20 steps",
            resumes=False,
        ),
        Program(
            name="sendrecv",
            module="ddptop.trainers.programs.primitives.sendrecv",
            technique="point to point: a tensor along a chain of ranks, blocking, and around a ring, not blocking",
            source="PyTorch tutorial, Writing Distributed Applications with PyTorch",
            defaults="one number; no training",
            resumes=False,
        ),
        Program(
            name="collectives",
            module="ddptop.trainers.programs.primitives.collectives",
            technique="collectives by hand from send and recv: at a root, over a tree, around a ring",
            source="Thakur et al. 2005, Collective Communication Operations in MPICH; Patarasu and Yuan 2009 (ring)",
            defaults="all-reduce of 1 KB to 64 MB, 5 times each; no training",
            resumes=False,
        ),
    )
)
