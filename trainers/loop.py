"""The one training loop: data parallel, evaluated over all ranks, resumable.

Technique: every rank holds the whole model and trains on its own share of each batch; DDP
averages the gradients while backward still runs, so that all ranks take the same step.
Source: Li et al. 2020, PyTorch Distributed: Experiences on Accelerating Data Parallel Training.
Knows no particular model: a program brings its `Task`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

import ddptop.agent as agent
from ddptop.trainers import checkpoint, group, options
from ddptop.trainers.checkpoint import Checkpoint
from ddptop.trainers.data import Data, Kind, open_data, test_loader, train_loader
from ddptop.trainers.group import Place
from ddptop.trainers.options import Options
from ddptop.trainers.refusal import Refusal, one_line, refuse
from ddptop.trainers.synthetic import View


@dataclass(frozen=True)
class Task:
    """What a program brings to the loop."""

    title: str
    """The model in words; a checkpoint goes on only under the same title."""
    kind: Kind
    train_view: View
    test_view: View
    model: Callable[[], nn.Module]
    optimizer: Callable[[Iterable[nn.Parameter], float], Optimizer]
    log_every: int
    """Batches between two log lines."""
    schedule: Callable[[float], float] = lambda progress: 1.0
    """Factor of the learning rate at a progress of 0 to 1. A pure function needs no state to resume."""


@dataclass(frozen=True)
class Plan:
    """How long to train, in epochs and steps counted from the very beginning."""

    steps_per_epoch: int
    epochs: int
    steps: int


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    first_loss: float | None
    """Mean over the first epoch of this run, all ranks; None if there was nothing left to train."""
    last_loss: float | None
    test_loss: float
    accuracy: float
    """Share of the evaluation pictures that were named rightly, 0 to 1."""
    evaluated: int


def run(
    parser: argparse.ArgumentParser, task_of: Callable[[Options], Task], arguments: Sequence[str] | None = None
) -> int:
    """Do what a command line asks for; return the exit code."""
    try:
        asked = parser.parse_args(arguments, namespace=Options())
        options.check(asked)
        with group.joined() as place:
            train(parser.prog, task_of(asked), asked, place)
    except Refusal as refusal:
        return refuse(parser.prog, refusal)
    return 0


def train(name: str, task: Task, asked: Options, place: Place) -> Outcome:
    """Train a task to the end, from the start or from a checkpoint."""
    started = time.monotonic()
    data = open_data(task.kind, asked, place, task.train_view, task.test_view)
    loader, sampler = train_loader(data, asked, place)
    plan = _plan(asked, len(loader))

    torch.manual_seed(asked.seed)
    model = task.model().to(place.device)
    optimizer = task.optimizer(model.parameters(), asked.lr)
    begun = place.agree(lambda: _restore(asked, place, task, model, optimizer))
    ddp = DistributedDataParallel(model, device_ids=[place.device] if place.device.type == "cuda" else None)

    place.say(_opening(name, task, asked, place, data, plan, begun))
    agent.start(total_steps=max(plan.steps - begun.step, 0), note=data.title)

    step, losses = begun.step, []
    result = None
    for epoch in range(begun.epoch, plan.epochs):
        # The order and the augmentation of an epoch depend on nothing that happened before it,
        # so that a resumed run goes on as if it had never stopped.
        sampler.set_epoch(epoch)
        torch.manual_seed(hash((asked.seed, epoch, place.rank)))
        ddp.train()
        loss_sum, batches = torch.zeros((), device=place.device), 0
        for batch, (images, labels) in enumerate(loader):
            lr = asked.lr * task.schedule(step / plan.steps)
            for parameters in optimizer.param_groups:
                parameters["lr"] = lr
            images = images.to(place.device, non_blocking=True)
            labels = labels.to(place.device, non_blocking=True)

            optimizer.zero_grad()
            loss = cross_entropy(ddp(images), labels)
            loss.backward()
            optimizer.step()

            step += 1
            batches += 1
            loss_sum += loss.detach()
            agent.log(lr=lr)
            if batch % task.log_every == 0:
                print(f"rank {place.rank}, epoch {epoch}, batch {batch}, loss {loss.item():.4f}", flush=True)
            if step == plan.steps:
                break
        result = evaluate(model, test_loader(data, asked, place), place)
        agent.log(accuracy=result.accuracy)
        loss_total, batch_total = place.total(loss_sum, batches)
        losses.append(loss_total / batch_total)
        place.say(
            f"epoch {epoch} of {plan.epochs}: step {step}, training loss {losses[-1]:.4f}, "
            f"test loss {result.loss:.4f}, accuracy {result.accuracy:.1%} on {data.title}"
        )
        if asked.checkpoint_dir and place.first and batches == plan.steps_per_epoch:
            checkpoint.save(
                asked.checkpoint_dir,
                Checkpoint(task.title, epoch + 1, step, model.state_dict(), optimizer.state_dict()),
            )
    return Outcome()
