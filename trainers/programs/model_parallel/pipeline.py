"""Pipeline parallelism: each rank holds some layers, and a batch flows through the ranks in microbatches.

Technique: while a rank works on one microbatch, its neighbours work on others. At the start of a
step the last ranks are idle, at its end the first ones: this is the bubble,
of (p-1)/(m+p-1) of the step with p ranks and m microbatches. `gpipe` does all forward passes, then
all backward passes. `1f1b` alternates, with the same bubble, but a rank holds the activations of p
microbatches at most, not of m. `interleaved` gives each rank two pieces of the network, which halves
the bubble: (p-1)/(2m+p-1).
Source: Huang et al. 2019, GPipe; Narayanan et al. 2019, PipeDream (1F1B); Narayanan et al. 2021,
Efficient Large-Scale Language Model Training (interleaved); PyTorch documentation, torch.distributed.pipelining.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer

from ddptop.trainers import CATALOGUE
from ddptop.trainers.programs.model_parallel.residual import LAYERS, WIDTH, pieces
from ddptop.trainers.rank.group import Position
from ddptop.trainers.rank.options import Defaults, Options, parser, positive_number, whole_number
from ddptop.trainers.rank.refusal import Refusal
from ddptop.trainers.training.data import MNIST, Data, Normalized, TrainingLoader
from ddptop.trainers.training.loop import run
from ddptop.trainers.training.task import Task
from ddptop.trainers.training.technique import Technique

GPU: Final = Defaults(device="GPU", epochs=5, batch_size=512, lr=0.05, samples=None, workers=2)
CPU: Final = Defaults(device="CPU", epochs=3, batch_size=32, lr=0.05, samples=2_560, workers=0)
CPU_DEVICE_MS: Final = 4.0

SCHEDULES: Final[dict[str, Any]] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
}
PIECES: Final = {"gpipe": 1, "1f1b": 1, "interleaved": 2}
"""Stages on each rank."""


def bubble(ranks: int, microbatches: int, each: int) -> float:
    """Return the share of a step in which a rank with `each` stages is idle, where all stages take equally long."""
    return (ranks - 1) / (each * microbatches + ranks - 1)


class Watch:
    """Measures the time for which this rank computes, and the microbatches that it holds, to compute the bubble."""

    def __init__(self) -> None:
        self.held = 0
        """Microbatches that have gone forward and not yet backward."""
        self.reset()

    def reset(self) -> None:
        """Reset the counts."""
        self.busy_s = self.passed_s = 0.0
        self.most_held = 0

    @contextmanager
    def computing(self, held: int) -> Iterator[None]:
        """Time a piece of work, which changes the number of held microbatches by `held`."""
        begun = time.perf_counter()
        yield
        self.busy_s += time.perf_counter() - begun
        self.held += held
        self.most_held = max(self.most_held, self.held)


class Stage(PipelineStage):
    """A stage of torch whose computations are timed."""

    watch: Watch

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Send a microbatch through the layers."""
        with self.watch.computing(+1):
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Send its gradient back."""
        with self.watch.computing(-1):
            return super().backward_one_chunk(*args, **kwargs)


class WholeBatches(TrainingLoader):
    """Omits the last batch of an epoch where it is smaller: tensors between ranks must have one shape."""

    def __len__(self) -> int:
        """Return the number of whole batches of an epoch."""
        return self._share.most // self._batch_size


class Pipeline(Technique):
    """One model cut into stages, and the schedule by which they work."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, position: Position, *, schedule: str, microbatches: int
    ) -> None:
        super().__init__(model, optimizer, position)
        self._pieces: dict[int, nn.Module] = {int(number): piece for number, piece in model.named_children()}
        self._count = position.world * len(self._pieces)
        """Stages of all ranks; they are assigned in turn, so that a rank's two pieces are far apart."""
        self._theory = bubble(position.world, microbatches, len(self._pieces))
        self._watch = Watch()
        self._warm = False
        stages = [Stage(piece, number, self._count, position.device) for number, piece in self._pieces.items()]
        for stage in stages:
            stage.watch = self._watch
        self._schedule = SCHEDULES[schedule](
            stages if schedule == "interleaved" else stages[0], microbatches, loss_fn=cross_entropy
        )

    @property
    def share(self) -> Position:
        """All images: the ranks are one replica."""
        return replace(self.position, rank=0, world=1)

    @property
    def coordinates(self) -> dict[str, int]:
        """The position in the pipeline."""
        return {"stage": self.position.rank}

    def loader(self, data: Data, options: Options) -> TrainingLoader:
        """Return the source of batches that can all be split into equal microbatches."""
        return WholeBatches(data, options, self.share)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Do one step: images enter at the first stage, the last one computes the loss."""
        begun = time.perf_counter()
        self.optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        entering = [images] if 0 in self._pieces else []
        leaving = {"target": labels, "losses": losses} if self._count - 1 in self._pieces else {}
        self._schedule.step(*entering, **leaving, return_outputs=False)
        self._watch.passed_s += time.perf_counter() - begun
        if not self._warm:  # in the first step the stages also exchange the shapes of their tensors
            self._watch.reset()
            self._warm = True
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros((), device=self.position.device)
        dist.broadcast(loss, src=self.position.world - 1)
        self.optimizer.step()
        return loss

    def scores(self, images: torch.Tensor) -> torch.Tensor:
        """Send images through all stages, one after the other, without overlap."""
        values = images
        for number in range(self._count):
            piece = self._pieces.get(number)
            width = MNIST.classes if number == self._count - 1 else WIDTH
            values = values.new_empty(len(images), width) if piece is None else piece(values)
            dist.broadcast(values, src=number % self.position.world)
        return values

    def note(self) -> str:
        """Return the measured bubble of the epoch, and that in theory."""
        seen: list[Any] = [None] * self.position.world
        dist.all_gather_object(seen, (self._watch.busy_s, self._watch.passed_s, self._watch.most_held))
        self._watch.reset()
        busy_s, passed_s, held = zip(*seen, strict=True)
        # The first rank begins and ends each step; the others begin later or end earlier.
        share = 1 - sum(busy_s) / len(busy_s) / max(passed_s)
        return f", bubble {share:.1%} (theory {self._theory:.1%}), microbatches held by rank {' '.join(map(str, held))}"

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the layers of all stages, and the optimizer's state of each."""
        own = {name: (value.detach(), dict(self.optimizer.state[value])) for name, value in self._parameters()}
        gathered: list[Any] | None = [None] * self.position.world if self.position.first else None
        dist.gather_object(own, gathered)
        whole = {name: state for part in gathered or () for name, state in part.items()}
        return {name: value for name, (value, _) in whole.items()}, {
            name: memory for name, (_, memory) in whole.items()
        }

    @torch.no_grad()
    def load(self, model: dict[str, Any], optimizer: dict[str, Any]) -> None:
        """Load the layers of this rank's stages."""
        for name, value in self._parameters():
            value.copy_(model[name])
            self.optimizer.state[value] = {key: memory.to(value.device) for key, memory in optimizer[name].items()}

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parameters under names that do not depend on the number of stages."""
        for piece in self._pieces.values():
            yield from piece.named_parameters()


def task(asked: Options) -> Task:
    """Return the task that the options describe.

    Raises:
        Refusal: the network or the batch cannot be split so.
    """
    ranks, each, microbatches = dist.get_world_size(), PIECES[asked.schedule], asked.microbatches
    if LAYERS % (ranks * each):
        raise Refusal(f"{LAYERS} layers cannot be cut into {ranks * each} equal stages; choose another number of ranks")
    if asked.batch_size % microbatches:
        raise Refusal(f"a batch of {asked.batch_size} cannot be cut into {microbatches} equal microbatches")
    if asked.schedule == "interleaved" and microbatches % max(1, microbatches // ranks):
        raise Refusal(f"interleaved, {ranks} ranks take a multiple of {ranks} microbatches, not {microbatches}")
    return Task(
        title=f"residual perceptron of {LAYERS} layers",
        kind=MNIST,
        train_view=Normalized(MNIST),
        test_view=Normalized(MNIST),
        model=partial(pieces, dist.get_rank(), ranks, each, asked.device_ms),
        optimizer=partial(SGD, momentum=0.9),
        log_every=50,
        technique=partial(Pipeline, schedule=asked.schedule, microbatches=microbatches),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; return the exit code."""
    on_gpu = torch.cuda.is_available()
    options = parser(CATALOGUE["pipeline"], GPU if on_gpu else CPU)
    flow = options.add_argument_group("pipeline")
    flow.add_argument(
        "--schedule", choices=tuple(SCHEDULES), default="1f1b", help="who works when (default %(default)s)"
    )
    flow.add_argument(
        "--microbatches", type=whole_number(1), default=8, metavar="M", help="parts of a batch (default %(default)s)"
    )
    flow.add_argument(
        "--device-ms", type=lambda text: 0.0 if text == "0" else positive_number(text), metavar="MS",
        default=0.0 if on_gpu else CPU_DEVICE_MS,
        help="let the whole network take so long for an image in forward, and twice as long in backward, by sleeping: "
        "a schedule cannot be seen where ranks wait for a core; 0 for what it takes (default %(default)s)",
    )  # fmt: skip
    return run(options, task, arguments)


if __name__ == "__main__":
    sys.exit(main())
