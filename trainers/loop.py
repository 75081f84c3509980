"""The one training loop: data parallel, evaluated over all ranks, resumable.

Technique: every rank holds the whole model and trains on its own share of each batch; DDP
averages the gradients while backward still runs, so that all ranks take the same step.
Source: Li et al. 2020, PyTorch Distributed: Experiences on Accelerating Data Parallel Training.
Knows no particular model: a program brings its `Task`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
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
from ddptop.trainers.data import evaluation_loader, open_data, training_loader
from ddptop.trainers.group import Place, say
from ddptop.trainers.options import Options
from ddptop.trainers.refusal import Refusal, one_line, refuse
from ddptop.trainers.task import Evaluation, Outcome, Plan, Task


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
    """Train a task to its end, from the start or from a checkpoint."""
    started = time.monotonic()
    data = open_data(task.kind, asked, place, task.train_view, task.test_view)
    loader, sampler = training_loader(data, asked, place)
    test = evaluation_loader(data, asked, place)

    torch.manual_seed(asked.seed)
    model = task.model().to(place.device)
    optimizer = task.optimizer(model.parameters(), asked.lr)
    first_epoch, step = place.agree(lambda: _begin(task, asked, place, model, optimizer))
    ddp = DistributedDataParallel(model)
    plan = Plan.of(asked, len(loader), first_epoch, step)

    place.say(
        f"{name}: {task.title}, {plan.steps} steps, {plan.steps_per_epoch} an epoch, "
        f"world {place.world}, batch {asked.batch_size} a rank, lr {asked.lr:g}, seed {asked.seed}, "
        f"{place.backend} on {place.device.type}, data {data.title}"
        + (f", goes on from epoch {first_epoch}, step {step}" if asked.resume else "")
    )
    agent.start(total_steps=max(plan.steps - step, 0), note=data.title if data.synthetic else None)

    folder = asked.checkpoint_dir
    epoch = first_epoch

    def save(_: int) -> Path | None:
        # Called inside of `optimizer.step()`: the step that has just been made is not counted yet.
        assert folder is not None
        if not place.first:
            return None
        checkpoint.save(folder, Checkpoint(task.title, epoch, step + 1, model.state_dict(), optimizer.state_dict()))
        return folder / checkpoint.CURRENT

    if folder is not None:
        agent.on_checkpoint(save)

    losses = []
    evaluation = None
    for epoch in range(first_epoch, plan.epochs):
        if step >= plan.steps:
            break
        # The order and the augmentation of an epoch depend on nothing that happened before it,
        # so that a resumed run goes on as if it had never stopped.
        sampler.set_epoch(epoch)
        torch.manual_seed(hash((asked.seed, epoch, place.rank)))
        model.train()
        loss_sum = torch.zeros((), device=place.device)
        batch = 0
        for batch, (images, labels) in enumerate(loader, start=1):
            lr = _set_rate(optimizer, asked.lr * task.schedule(step / plan.steps))
            images = images.to(place.device, non_blocking=True)
            labels = labels.to(place.device, non_blocking=True)

            optimizer.zero_grad()
            loss = cross_entropy(ddp(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
            optimizer.step()

            step += 1
            loss_sum += loss.detach()
            agent.log(lr=lr)
            if batch % task.log_every == 0:
                say(f"rank {place.rank}, epoch {epoch}, batch {batch}, loss {loss.item():.4f}")
            if step == plan.steps:
                break

        evaluation = evaluate(model, test, place)
        agent.log(accuracy=evaluation.accuracy)
        losses.append(place.total(loss_sum)[0] / (batch * place.world))
        place.say(
            f"epoch {epoch}: step {step} of {plan.steps}, training loss {losses[-1]:.4f}, "
            f"test loss {evaluation.loss:.4f}, accuracy {evaluation.accuracy:.1%}, data {data.title}"
        )
        if asked.checkpoint_dir is not None and batch == plan.steps_per_epoch and place.first:
            checkpoint.save(
                asked.checkpoint_dir,
                Checkpoint(task.title, epoch + 1, step, model.state_dict(), optimizer.state_dict()),
            )

    outcome = Outcome(step, tuple(losses), evaluation or evaluate(model, test, place))
    place.say(f"{name} finished: {outcome.summary(data.title, time.monotonic() - started)}")
    return outcome


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader[Any], place: Place) -> Evaluation:
    """Return loss and accuracy over the shares of all ranks, from sums: exact, however uneven the shares."""
    # Statistics that no gradient moves (batch norm) differ between ranks after a step. DDP takes
    # rank 0's before the next one; so do we, and evaluate the one model that is also saved.
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
    model.eval()
    loss = torch.zeros((), device=place.device)
    right = torch.zeros((), device=place.device)
    pictures = 0
    for images, labels in loader:
        images, labels = images.to(place.device), labels.to(place.device)
        scores = model(images)
        loss += cross_entropy(scores, labels, reduction="sum")
        right += (scores.argmax(1) == labels).sum()
        pictures += len(labels)
    loss_total, right_total, pictures_total = place.total(loss, right, pictures)
    return Evaluation(loss_total / pictures_total, right_total / pictures_total, int(pictures_total))


def _begin(task: Task, asked: Options, place: Place, model: nn.Module, optimizer: Optimizer) -> tuple[int, int]:
    """Return the epoch and the step to begin with, model and optimizer being as they were then."""
    folder = asked.checkpoint_dir
    if folder is None:
        return 0, 0
    if not asked.resume:
        if place.first:
            checkpoint.prepare(folder)
        return 0, 0
    found = checkpoint.load(folder, task.title)
    try:
        model.load_state_dict(found.model)
        optimizer.load_state_dict(found.optimizer)
    except (RuntimeError, ValueError, LookupError, TypeError) as error:
        raise Refusal(f"the checkpoint in {folder} does not fit {task.title}: {one_line(error)[:120]}") from error
    return found.epoch, found.step


def _set_rate(optimizer: Optimizer, lr: float) -> float:
    for parameters in optimizer.param_groups:
        parameters["lr"] = lr
    return lr
