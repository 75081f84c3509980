"""The training loop of ranks that do not share a step: some serve the parameters, the others train on them.

Log lines and checkpoints do not synchronize the ranks: each worker prints its own lines, and
the first worker writes the checkpoints. At the end all ranks evaluate together.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.utils import vector_to_parameters

import ddptop.agent as agent
from ddptop.trainers.programs.asynchronous.servers import Remote, Server
from ddptop.trainers.rank.group import Position, say
from ddptop.trainers.rank.options import Options
from ddptop.trainers.training import checkpoint
from ddptop.trainers.training.data import TrainingLoader, evaluation_loader, open_data
from ddptop.trainers.training.loop import evaluate, tally
from ddptop.trainers.training.metrics import Metrics
from ddptop.trainers.training.task import Outcome, Plan, Task
from ddptop.trainers.training.technique import Technique
from ddptop.trainers.training.throughput import Throughput


class Asynchronous:
    """One rank's part in the training: that of a server, or that of a worker."""

    def __init__(self, name: str, task: Task, asked: Options, position: Position) -> None:
        self.name, self.task, self.asked, self.position = name, task, asked, position
        self.data = open_data(task.kind, asked, position, task.train_view, task.test_view)
        torch.manual_seed(asked.seed)
        self.model = task.model().to(position.device)
        self._remote = Remote(self.model.parameters(), asked.servers)
        self.technique = Technique(self.model, self._remote, position)
        self._workers = range(asked.servers, position.world)
        # The images are shared among the workers, and the first worker has rank 0 among them.
        self._worker = replace(position, rank=max(position.rank - asked.servers, 0), world=len(self._workers))
        self._loader = TrainingLoader(self.data, asked, self._worker)
        self.progress = checkpoint.begin(asked, task.title, self.technique, self._loader)
        self._metrics = position.agree(lambda: Metrics(asked.tensorboard if self._works else None, self._worker))
        batch = self._loader.batches_in(self.progress.images)
        self.plan = Plan.of(asked, len(self._loader), self.progress.epoch, self.progress.step, batch)
        self._losses: list[float] = []
        """Mean of each epoch."""
        self._staleness = 0
        """Sum over all steps."""
        self._throughput = Throughput()

    @property
    def _works(self) -> bool:
        return self.position.rank in self._workers

    def run(self) -> None:
        """Train; at the end all ranks get the parameters, and evaluate them together."""
        begun, asked, position = time.monotonic(), self.asked, self.position
        before = self.progress.step
        steps = self.plan.steps - before
        bounded = math.isfinite(asked.staleness)
        position.say(
            f"{self.name}: {self.task.title}, {steps * len(self._workers)} updates, servers {asked.servers}, "
            f"workers {len(self._workers)}, ahead of the slowest by {asked.staleness if bounded else 'any number of'} "
            f"steps, batch {asked.batch_size}, lr {asked.lr:g}, seed {asked.seed}, data {self.data.title}"
        )
        # Without a bound the faster workers do more of the steps, and their number is not known beforehand.
        note = self.data.title if self.data.synthetic else None
        role = {"worker": position.rank - asked.servers} if self._works else {"server": position.rank}
        agent.start(total_steps=steps if bounded else None, note=note, coordinates=role)
        if asked.checkpoint_dir is not None:
            agent.on_checkpoint(self.save)
        shards = self._remote.shards(self.model.parameters())
        if self._works:
            self._remote.over = steps == 0
            self._train()
        else:
            server = Server(shards[position.rank], self._workers, asked.lr, asked.staleness, steps * len(self._workers))
            while server.clocks:
                agent.log(lr=asked.lr)
                server.step()
        for rank, shard in enumerate(shards):
            dist.broadcast(shard, rank)
        vector_to_parameters(torch.cat(shards).to(position.device), self.model.parameters())
        self.save()
        self._print_outcome(self.progress.step - before, time.monotonic() - begun)

    def _train(self) -> None:
        """Train on this worker's share, epoch after epoch, until the servers have all their updates."""
        progress, asked = self.progress, self.asked
        batch = self._loader.batches_in(progress.images)
        while not self._remote.over:
            losses = []
            self._loader.begin(progress.epoch, batch)
            self.model.train()
            for images, labels in self._loader.draw(len(self._loader) - batch):
                batch += 1
                progress.step += 1
                progress.images = batch * asked.batch_size * len(self._workers)
                self._metrics.log(progress.step, lr=asked.lr, staleness=self._remote.staleness)
                loss = self.technique.step(images.to(self.position.device), labels.to(self.position.device)).item()
                losses.append(loss)
                self._staleness += self._remote.staleness
                self._throughput.add(len(images))
                if batch % self.task.log_every == 0:
                    self._metrics.log(progress.step, loss=loss)
                    say(f"rank {self.position.rank}, epoch {progress.epoch}, batch {batch}, loss {loss:.4f}")
                if self._remote.over:
                    break
            self._losses.append(sum(losses) / len(losses))
            if batch == len(self._loader):
                self._end_epoch()
                batch = 0
        self._remote.leave()
        self._metrics.close()

    def _end_epoch(self) -> None:
        """Evaluate this worker's copy on its share of the test pictures."""
        _, right, pictures = tally(self.technique, evaluation_loader(self.data, self.asked, self._worker))
        accuracy = right / max(pictures, 1)
        self._metrics.log(self.progress.step, accuracy=accuracy)
        say(
            f"rank {self.position.rank}, epoch {self.progress.epoch}, training loss {self._losses[-1]:.4f}, "
            f"accuracy {accuracy:.1%} of {pictures} images, data {self.data.title}"
        )
        self.progress.epoch, self.progress.images = self.progress.epoch + 1, 0
        self.save()

    def save(self, _: int = 0) -> Path | None:
        """Write a checkpoint and return its path; any rank may call it, the first worker writes."""
        if not (self._works and self._worker.first):
            return None
        return checkpoint.store(self.asked, self.task.title, self.progress, self.technique.state())

    def _print_outcome(self, steps: int, seconds: float) -> None:
        """Print the outcome of all ranks together, once."""
        position = self.position
        evaluation = evaluate(self.technique, evaluation_loader(self.data, self.asked, position))
        ends = (self._losses[0], self._losses[-1], 1) if self._losses else (0, 0, 0)
        first, last, workers, rate, staleness = position.total(*ends, self._throughput.since_last(), self._staleness)
        each: list[int] = [0] * position.world
        dist.all_gather_object(each, steps)
        losses = (first / workers, last / workers) if workers else ()
        outcome = Outcome(sum(each), losses, evaluation, self.data.title, seconds)
        position.say(
            f"{self.name} finished: {outcome.summary()}, {rate:,.0f} images/s, steps by worker "
            f"{' '.join(map(str, each[self.asked.servers :]))}, mean staleness {staleness / max(sum(each), 1):.1f}"
        )
