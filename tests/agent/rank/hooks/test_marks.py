"""Steps of scripts without an optimizer of torch, and of those that mark them, against the script's own count."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.harness import ddptop, status, write_script
from support.processes.ranks import observed

SCRIPT = """
import os, sys, torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from ddptop import agent

dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=0, world_size=1)
net = torch.nn.Linear(8, 2)
data = TensorDataset(torch.randn(160, 8))
how, count = sys.argv[1], 0

def descend():
    with torch.no_grad():
        for each in net.parameters():
            each -= 0.01 * each.grad
            each.grad = None

if how == "own optimizer":
    model = torch.nn.parallel.DistributedDataParallel(net)
    for (batch,) in DataLoader(data, batch_size=4):
        with model.no_sync():
            model(batch).sum().backward()
        model(batch).sum().backward()
        descend()
        count += 1
elif how == "inference":
    with torch.no_grad():
        pairs = zip(DataLoader(data, batch_size=4), DataLoader(data, batch_size=2))
        for (batch,), _ in pairs:
            net(batch)
            count += 1
elif how == "taken by hand":
    batches = iter(DataLoader(data, batch_size=4))
    for _ in range(30):
        net(next(batches)[0])
        count += 1
elif how in ("evaluated before", "evaluated before marks"):
    with torch.no_grad():
        for (batch,) in DataLoader(data, batch_size=4):
            net(batch)
    optimizer = torch.optim.SGD(net.parameters(), 0.1) if how == "evaluated before" else None
    for _ in range(12):
        net(torch.ones(4, 8)).sum().backward()
        optimizer.step() if optimizer is not None else agent.step()
        count += 1
elif how == "warmed up":
    model = torch.nn.parallel.DistributedDataParallel(net)
    for _ in range(30):
        model(torch.ones(4, 8)).sum().backward()
        descend()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(12):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        count += 1
elif how == "beside a thread":
    import threading

    def explore():
        model(torch.ones(4, 8)).sum().backward()

    model = torch.nn.parallel.DistributedDataParallel(net)
    for _ in range(12):
        model(torch.ones(4, 8)).sum().backward()
        count += 1
        other = threading.Thread(target=explore)
        other.start()
        other.join()
        descend()
elif how == "marked":
    first, second = torch.optim.SGD(net.parameters(), 0.1), torch.optim.Adam(net.parameters())
    for (batch,) in DataLoader(data, batch_size=4):
        for optimizer in (first, second):
            net(batch).sum().backward()
            optimizer.step()
        agent.step()
        count += 1
elif how == "plain":
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for (batch,) in DataLoader(data, batch_size=4):
        net(batch).sum().backward()
        optimizer.step()
        count += 1
elif how == "resumed":
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    optimizer = torch.optim.Adam(net.parameters())
    # torch makes a step of its own, for the state that a checkpoint is loaded into.
    get_optimizer_state_dict(net, optimizer)
    for _ in range(12):
        net(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        count += 1
elif how == "gradients by hand":
    parts = [net.weight], [net.bias]
    optimizers = [torch.optim.SGD(part, 0.1) for part in parts]
    for _ in range(12):
        for part, optimizer in zip(parts, optimizers):
            (part[0].grad,) = torch.autograd.grad(net(torch.ones(4, 8)).sum(), part)
            optimizer.step()
            count += 1
elif how == "unseen":
    for _ in range(30):
        torch.autograd.grad(net(torch.ones(4, 8)).sum(), list(net.parameters()))
print("count", count, flush=True)
dist.destroy_process_group()
"""


COUNTED = {
    "own optimizer": "backward passes",
    "inference": "batches",
    "taken by hand": "batches",
    "evaluated before": None,
    "evaluated before marks": "calls of ddptop.agent.step()",
    "warmed up": None,
    "beside a thread": "backward passes",
    "marked": "calls of ddptop.agent.step()",
    "plain": None,
    "resumed": None,
    "gradients by hand": None,
    "unseen": None,
}
"""By way of training, what is said to be counted."""


def name_of(how: str) -> str:
    return f"marks-{how.replace(' ', '-')}"


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the script has printed in each way; several at once, since most of the time is waited."""
    folders = {how: tmp_path_factory.mktemp("marks") for how in COUNTED}

    def train(how: str) -> str:
        with observed(name_of(how), write_script(folders[how], SCRIPT), how, world=1) as (_, ranks):
            assert ranks.wait() == 0, ranks.said
        return ranks.said

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(COUNTED, pool.map(train, COUNTED), strict=True))


@pytest.mark.parametrize(("how", "steps_are"), COUNTED.items())
def test_the_steps_are_those_that_the_script_has_counted(
    printed: dict[str, str], how: str, steps_are: str | None
) -> None:
    """And it is said what is counted, or how a step could be marked."""
    name = name_of(how)
    said = status(name)
    assert said["step"] == int(printed[how].split("count ")[1].split()[0])
    assert said["steps_are"] == steps_are
    events = ddptop("events", name).stdout
    assert (f"steps are {steps_are}: " in events) == (steps_are in ("backward passes", "batches"))
    assert ("no optimizer step seen: steps are not counted" in events) == (how == "unseen")
    assert ("steps are counted anew: " in events) == how.startswith(("evaluated", "warmed"))
