"""A parameter server and its workers, each as an optimizer: a step of either is a step of the training.

A worker pushes its gradient and pulls the parameters back; a server applies each push when it arrives.
Source: Li et al. 2014, Scaling Distributed Machine Learning with the Parameter Server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import Optimizer

LEAVES: Final = 1.0
"""Last number of a push by which a worker leaves; it is 0 in a push of a gradient."""


class Server(Optimizer):
    """One shard of the parameters, and for each worker a clock: the steps that it has pushed.

    A step of a server is a tick of the slowest worker's clock. Servers and workers thus count the
    same steps, and a group that is held at one has no message in flight.

    Args:
        bound: steps that a worker may be ahead of the slowest.
        budget: updates after which the workers end.
    """

    def __init__(self, shard: torch.Tensor, workers: Iterable[int], lr: float, bound: float, budget: float) -> None:
        super().__init__([shard], {"lr": lr})
        self.shard = shard
        self.clocks = dict.fromkeys(workers, 0)
        self.updates = 0
        self._bound, self._budget = bound, budget
        self._push = torch.empty(len(shard) + 1)
        self._unanswered: dict[int, int] = {}
        """Staleness of the last gradient of each worker that waits for the parameters."""
        self._pulled = dict.fromkeys(self.clocks, 0)
        """By worker, the number of updates in the parameters that it has."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # computes no loss
        """Serve until every worker has done one more step, or all have left."""
        tick = min(self.clocks.values()) + 1
        while min(self.clocks.values(), default=tick) < tick:
            worker = dist.recv(self._push)  # from any worker
            gradient, leaves = self._push[:-1], self._push[-1].item() == LEAVES
            if leaves:
                del self.clocks[worker]
            else:
                self._unanswered[worker] = self.updates - self._pulled[worker]
                self.shard.add_(gradient, alpha=-self.defaults["lr"])  # no other gradient is waited for
                self.updates += 1
                self.clocks[worker] += 1
            self._answer()

    def _answer(self) -> None:
        """Send the parameters to the workers that wait for them and may go on."""
        slowest = min(self.clocks.values(), default=0)
        for worker in [each for each in self._unanswered if self.clocks[each] - slowest <= self._bound]:
            notes = torch.tensor([self._unanswered.pop(worker), self.updates >= self._budget])
            dist.send(torch.cat([self.shard, notes]), worker)
            self._pulled[worker] = self.updates


class Remote(Optimizer):
    """The optimizer of a worker: the servers, which are the first ranks, do its steps."""

    def __init__(self, parameters: Iterable[nn.Parameter], servers: int) -> None:
        super().__init__(parameters, {})
        self._parameters: list[nn.Parameter] = self.param_groups[0]["params"]
        self._servers = servers
        self._answers = [torch.empty(len(shard) + 2) for shard in self.shards(self._parameters)]
        self.staleness = 0
        """Updates by others between the last pull and the push that followed it."""
        self.over = False
        """True once the servers have all their updates."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # computes no loss
        """Push the gradient, pull the parameters."""
        # The receives are posted first, so that no server waits for them.
        pulls = [dist.irecv(answer, server) for server, answer in enumerate(self._answers)]
        gradients = [value.grad for value in self._parameters if value.grad is not None]
        pushes = self._push(self.shards(gradients), 0.0)
        for message in [*pulls, *pushes]:
            message.wait()
        pulled = torch.cat([answer[:-2] for answer in self._answers])
        vector_to_parameters(pulled.to(self._parameters[0].device), self._parameters)
        staleness, over = self._answers[0][-2:].tolist()
        self.staleness, self.over = int(staleness), bool(over)

    def leave(self) -> None:
        """Tell the servers that this worker sends no more gradients."""
        for message in self._push([torch.zeros(len(answer) - 2) for answer in self._answers], LEAVES):
            message.wait()

    def shards(self, tensors: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the tensors, flattened and concatenated, in one shard for each server."""
        return parameters_to_vector(tensors).detach().cpu().tensor_split(self._servers)

    @staticmethod
    def _push(parts: Sequence[torch.Tensor], leaves: float) -> list[Any]:
        return [dist.isend(torch.cat([part, torch.tensor([leaves])]), server) for server, part in enumerate(parts)]
