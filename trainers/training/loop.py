"""The training loop: epochs, evaluation over all ranks, checkpoints, log lines.

How the ranks train together is the `Technique` of the program's `Task`, which is the page to read
first.  This module knows no particular model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import ddptop.agent as agent
from ddptop.trainers.rank import options, start
from ddptop.trainers.rank.group import Position, say
from ddptop.trainers.rank.options import Options
from ddptop.trainers.rank.refusal import Refusal
from ddptop.trainers.training import checkpoint
from ddptop.trainers.training.data import evaluation_loader, open_data
from ddptop.trainers.training.metrics import Metrics
from ddptop.trainers.training.randomness import seed
from ddptop.trainers.training.task import Evaluation, Outcome, Plan, Task
from ddptop.trainers.training.technique import Technique


def run(
    parser: argparse.ArgumentParser,
    task_of: Callable[[Options], Task],
    arguments: Sequence[str] | None = None,
    closing: Callable[[Outcome, Training], None] = lambda outcome, training: None,
) -> int:
    """Train by a command line; return the exit code.

    Args:
        closing: called on every rank after the training.
    """

    def work(asked: Options, position: Position) -> None:
        training = Training(parser.prog, task_of(asked), asked, position)
        closing(training.run(), training)

    return start.run(parser, work, arguments, options.check)


class Training:
    """One rank's part in the training of a task, from the start or from a checkpoint to its end."""

    def __init__(self, name: str, task: Task, asked: Options, position: Position) -> None:
        self.name = name
        self.task = task
        self.asked = asked
        self.position = position
        self._started = time.monotonic()
        self.data = open_data(task.kind, asked, position, task.train_view, task.test_view)
        torch.manual_seed(asked.seed)
        self.model = position.agree(task.model).to(position.device)
        self._optimizer = task.optimizer(self.model.parameters(), asked.lr)
        self.technique = task.technique(self.model, self._optimizer, position)
        self._loader = self.technique.loader(self.data, asked)
        if not len(self._loader):
            raise Refusal(f"{self.data.title}: fewer images than one step takes; lower --batch-size or raise --samples")
        self._test = evaluation_loader(self.data, asked, self.technique.share)
        self.progress = checkpoint.begin(asked, task.title, self.technique, self._loader)
        self._metrics = position.agree(lambda: Metrics(asked.tensorboard, position))
        batch = self._loader.batches_in(self.progress.images)
        self.plan = Plan.of(asked, len(self._loader), self.progress.epoch, self.progress.step, batch)

    def run(self) -> Outcome:
        """Train."""
        plan, progress, asked, position = self.plan, self.progress, self.asked, self.position
        position.say(
            f"{self.name}: {self.task.title}, {plan.steps} steps, {plan.steps_per_epoch} an epoch, "
            f"world {position.world}, batch {asked.batch_size} a rank, lr {asked.lr:g}, seed {asked.seed}, "
            f"{position.backend} on {position.device.type}, data {self.data.title}"
            + (f", goes on from epoch {progress.epoch}, step {progress.step}" if asked.resume else "")
        )
        agent.start(
            total_steps=plan.steps - progress.step,
            note=self.data.title if self.data.synthetic else None,
            coordinates=self.technique.coordinates,
        )
        if asked.checkpoint_dir is not None:
            agent.on_checkpoint(self.save)
        losses = []
        evaluation = None
        while progress.epoch < plan.epochs and progress.step < plan.steps:
            epoch = progress.epoch
            losses.append(self._train_epoch())
            evaluation = evaluate(self.technique, self._test)
            self._metrics.log(progress.step, accuracy=evaluation.accuracy)
            position.say(
                f"epoch {epoch}: step {progress.step} of {plan.steps}, training loss {losses[-1]:.4f}, "
                f"test loss {evaluation.loss:.4f}, accuracy {evaluation.accuracy:.1%}, data {self.data.title}"
                + self.technique.note()
            )
            self.save()
        self._metrics.close()
        seconds = time.monotonic() - self._started
        evaluation = evaluation or evaluate(self.technique, self._test)
        outcome = Outcome(progress.step, tuple(losses), evaluation, self.data.title, seconds)
        position.say(f"{self.name} finished: {outcome.summary()}")
        return outcome

    def save(self, _: int = 0) -> Path | None:
        """Write a checkpoint and return its path; every rank calls this at the same step, and rank 0 writes."""
        if self.asked.checkpoint_dir is None:
            return None
        state = self.technique.state()
        return checkpoint.store(self.asked, self.task.title, self.progress, state) if self.position.first else None

    def _train_epoch(self) -> float:
        """Train to the end of the epoch, or of the plan; return the mean loss over all ranks."""
        plan, progress, asked, position = self.plan, self.progress, self.asked, self.position
        batch = self._loader.batches_in(progress.images)
        until = min(plan.steps_per_epoch, batch + plan.steps - progress.step)
        loss_sum = torch.zeros((), device=position.device)
        batches = 0
        self._loader.begin(progress.epoch, batch)
        self.model.train()
        with self.technique.uneven() if asked.uneven else nullcontext():
            for images, labels in self._loader.draw(until - batch):
                lr = self._set_rate()
                batch += 1
                # Counted before the step, because `on_checkpoint`'s function may be called inside of it.
                self._count()
                seed(asked.seed, progress.step, position.rank, device=position.device)
                loss = self.technique.step(
                    images.to(position.device, non_blocking=True), labels.to(position.device, non_blocking=True)
                )
                loss_sum += loss
                batches += 1
                self._metrics.log(progress.step, lr=lr)
                if batch % self.task.log_every == 0:
                    value = loss.item()
                    self._metrics.log(progress.step, loss=value)
                    say(f"rank {position.rank}, epoch {progress.epoch}, batch {batch}, loss {value:.4f}")
        for _ in range(batch, until):
            # This rank has no more batches. Steps without gradients change nothing, but keep all counts equal.
            self._count()
            self._optimizer.zero_grad()
            self._optimizer.step()
        if until == plan.steps_per_epoch:
            progress.epoch, progress.images = progress.epoch + 1, 0
        loss_total, batches_total = position.total(loss_sum, batches)
        return loss_total / batches_total

    def _count(self) -> None:
        self.progress.step += 1
        self.progress.images += self.asked.batch_size * self.technique.share.world

    def _set_rate(self) -> float:
        lr = self.asked.lr * self.task.schedule(self.progress.step / self.plan.steps)
        for parameters in self._optimizer.param_groups:
            parameters["lr"] = lr
        return lr


def evaluate(technique: Technique, loader: DataLoader[Any]) -> Evaluation:
    """Return loss and accuracy over the shares of all ranks, from sums: exact also for uneven shares."""
    position, share = technique.position, technique.share
    # Running statistics (batch normalization) differ between ranks after a step. DDP broadcasts those of
    # rank 0 before the next step; so does this function, which evaluates the model that is also saved.
    for buffer in technique.model.buffers():
        dist.broadcast(buffer, src=0)
    loss, right, pictures = position.total(*tally(technique, loader))
    seen_by = position.world // share.world  # ranks that hold parts of one model see the same pictures
    return Evaluation(loss / pictures, right / pictures, int(pictures) // seen_by)


@torch.no_grad()
def tally(technique: Technique, loader: DataLoader[Any]) -> tuple[float, float, int]:
    """Return the sum of the losses, the number of correct answers, and the number of pictures of this rank's share."""
    technique.model.eval()
    device = technique.position.device
    loss, right, pictures = torch.zeros((), device=device), torch.zeros((), device=device), 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        scores = technique.scores(images)
        loss += cross_entropy(scores, labels, reduction="sum")
        right += (scores.argmax(1) == labels).sum()
        pictures += len(labels)
    return float(loss), float(right), pictures
