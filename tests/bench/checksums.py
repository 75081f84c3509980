"""What comparing parameters costs the training thread: `python tests/bench/checksums.py [--every 100] [--checks 30]`.

A network is trained in this process alone, with the calls that the agent makes at the end of each step around it: first
the counting of steps, which every step pays, then a check of all parameters, which one step in `--every` pays.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

NETWORKS = ("linear", "resnet18")
COUNTED = 10_000
"""Steps whose counting is timed at once: one takes less than the clock tells."""


def network(name: str) -> tuple[Any, Any]:
    """Return a model and a batch of random inputs for it."""
    import torch

    if name == "linear":
        return torch.nn.Linear(128, 10), torch.randn(32, 128)
    from torchvision.models import resnet18

    return resnet18(num_classes=10), torch.randn(8, 3, 32, 32)


def measured(name: str, every: int, checks: int) -> tuple[int, float, float, float, float]:
    """Return tensors, us of a step's counting, us of a check, us a step of both, and ms of a step without."""
    import torch

    from ddptop.agent.rank.checksums.checks import Checks
    from ddptop.agent.rank.faults import Faults
    from ddptop.agent.run.switches.checking import Checking

    model, inputs = network(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    counting, checking = (Checks(0, 0, Faults(), Checking(each)) for each in (0, 1))
    counting.watch(torch)
    checking.watch(torch)
    steps, took, tensors = [], [], 0
    for number in range(1, checks + 1):
        began = time.thread_time()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        steps.append(time.thread_time() - began)
        # After a step of the training, so that the caches are as they would be.
        began = time.thread_time()
        checking.stepped(optimizer)
        checking.boundary(number)
        took.append(time.thread_time() - began)
        (message,) = checking.take()
        tensors = len(message.modules[0].sums) // 8
    began = time.thread_time()
    for number in range(COUNTED):
        counting.stepped(optimizer)
        counting.boundary(number)
    count_us = (time.thread_time() - began) / COUNTED * 1e6
    check_us = statistics.median(took[1:]) * 1e6
    return tensors, count_us, check_us, count_us + check_us / every, statistics.median(steps[1:]) * 1e3


def main() -> None:
    """Print a line for each network."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--every", type=int, default=100, metavar="K", help="steps from one check to the next (100)")
    parser.add_argument("--checks", type=int, default=30, metavar="N", help="checks that are timed (30)")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    for name in NETWORKS:
        tensors, count_us, check_us, step_us, step_ms = measured(name, options.every, options.checks)
        together = f"{step_us:.1f} us a step at K={options.every}, {step_us / step_ms / 10:.2f} % of {step_ms:.2f} ms"
        print(f"{name}: {tensors} tensors, counting {count_us:.1f} us, a check {check_us:,.0f} us, together {together}")


if __name__ == "__main__":
    main()
