"""A training by hand that loads less than DDP does; copied beside the scripts of tests that start many ranks.

DDP and torch's optimizers load `torch._dynamo`, which takes as long as torch itself.  Tests in which it does not
matter who averages the gradients do it here, by one all-reduce; the optimizer is one of torch, but for its update.
"""

import atexit
import gc
from typing import Any

# What torch defines stays: it is not looked through for garbage while it is imported, nor at the end.
gc.set_threshold(100_000)
atexit.register(gc.freeze)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402


class Descent(torch.optim.Optimizer):
    """Gradient descent with the mean of the ranks' gradients."""

    def __init__(self, model: nn.Module, rate: float = 0.01) -> None:
        super().__init__(list(model.parameters()), {"lr": rate})

    # The two of torch load torch._dynamo.
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.param_groups.append({**self.defaults, **param_group})

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        group = self.param_groups[0]
        parameters = group["params"]
        for parameter, gradient in zip(parameters, _means(parameters), strict=True):
            parameter.sub_(gradient.view_as(parameter), alpha=group["lr"])


def _means(parameters: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    gradients = torch.cat([each.grad.flatten() for each in parameters if each.grad is not None])
    dist.all_reduce(gradients)
    return torch.split(gradients / dist.get_world_size(), [each.numel() for each in parameters])
