"""Training loops of many kinds in one process a rank; rank 0 prints what the agent made of each as JSON.

Run as `phase_cases.py FILE`: two ranks, which meet at the file.  Delays are slept, so
that the test knows from the outside what each phase must hold at least.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch import distributed, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ddptop.agent.rank.hooks import patches
from ddptop.agent.rank.publisher import Publisher
from ddptop.agent.rank.records.health import Health
from ddptop.agent.rank.session import Session
from ddptop.agent.run import rundir
from ddptop.agent.run.files import marks

RANK = 0
"""Of this process; the other one is forked below, after the imports, which take seconds."""
DELAY = 0.02
LATE = 8 * DELAY
"""By how much rank 1 is late for a collective: the delay that is to be found in the phases."""
cases: list[Callable[[], dict[str, Any] | None]] = []
session: Session
"""The rank's own, made before the first case."""


def case(function: Callable[[], dict[str, Any] | None]) -> Callable[[], dict[str, Any] | None]:
    cases.append(function)
    return function


class Slow(Dataset[torch.Tensor]):
    """Eight samples in batches of four; drawing one batch takes `delay`."""

    def __init__(self, delay: float = 0.0, size: int = 8) -> None:
        self.delay, self.size = delay, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.delay / 4)
        return torch.full((3,), float(index))


class SlowModule(nn.Module):
    """A linear layer whose forward and backward pass take `DELAY` each."""

    def __init__(self, delay: float = DELAY) -> None:
        super().__init__()
        self.delay = delay
        self.layer = nn.Linear(3, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(self.delay)
        outputs: torch.Tensor = self.layer(inputs)
        if outputs.requires_grad:
            outputs.register_hook(lambda _: time.sleep(self.delay))
        return outputs


def under_ddp(module: nn.Module) -> tuple[Any, torch.optim.Optimizer]:
    return nn.parallel.DistributedDataParallel(module), torch.optim.SGD(module.parameters(), lr=1e-3)


@case
def accumulation() -> dict[str, Any]:
    model, sgd = under_ddp(SlowModule())
    losses = []
    for _ in range(2):
        batches = iter(DataLoader(Slow(DELAY, 16), batch_size=4))
        for _ in range(3):
            with model.no_sync():
                loss = model(next(batches)).mean()
                loss.backward()
                losses.append(loss.item())
        loss = model(next(batches)).mean()
        loss.backward()
        losses.append(loss.item())
        sgd.step()
    return {"losses": losses}


@case
def divided() -> dict[str, Any]:
    """Each loss is divided by the number of micro-batches, in the ways that scripts and frameworks have."""
    model, sgd = under_ddp(SlowModule(0.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    ways: list[Callable[[Any], Any]] = [
        lambda loss: loss / 4,
        lambda loss: loss * 0.25,
        lambda loss: loss.div_(4),
        lambda loss: loss / torch.tensor(4),
        lambda loss: scaler.scale(loss / 4),
        lambda loss: loss / 4 * 2,
    ]
    means = []
    for way in ways:
        losses = []
        for number in range(4):
            loss = model(torch.ones(4, 3)).mean() * 0 + number + 1
            losses.append(loss.item())
            way(loss).backward()
        sgd.step()
        means.append(sum(losses) / 4)
    means[-1] *= 2
    return {"losses": means}


@case
def workers() -> None:
    model, sgd = under_ddp(SlowModule(0.0))
    for batch in DataLoader(Slow(4 * DELAY, 12), batch_size=4, num_workers=1):
        model(batch).mean().backward()
        sgd.step()


@case
def gan() -> None:
    generator, g_step = under_ddp(SlowModule())
    critic, c_step = under_ddp(nn.Linear(1, 1))
    for batch in DataLoader(Slow(4 * DELAY), batch_size=4):
        critic(generator(batch).detach()).mean().backward()
        c_step.step()
        (critic(generator(batch)) * 2).mean().backward()
        g_step.step()


def at_boundaries(train: Callable[[], object], look: Callable[[], Any]) -> list[Any]:
    """Return what `look` finds at each boundary of a step."""
    found: list[Any] = []
    end_step = session.end_step

    def spy(*, by_hand: bool = False) -> None:
        found.append(look())
        end_step(by_hand=by_hand)

    session.end_step = spy  # type: ignore[method-assign]
    train()
    session.end_step = end_step  # type: ignore[method-assign]
    return found


@case
def one_optimizer_after_the_other() -> dict[str, Any]:
    model, _ = under_ddp(SlowModule())
    optimizers = [torch.optim.AdamW([each], lr=lr) for each, lr in zip(model.parameters(), (0.1, 0.2), strict=True)]

    def train() -> None:
        for _ in range(4):
            model(torch.ones(4, 3)).pow(2).mean().backward()
            for each in optimizers:
                each.step()
            for each in optimizers:
                each.zero_grad()

    def look() -> list[float]:
        return [float(state["step"]) for each in optimizers for state in each.state.values()]

    return {"made": at_boundaries(train, look)}


@case
def the_second_optimizer_now_and_then() -> None:
    model, _ = under_ddp(SlowModule(0.0))
    first, second = (torch.optim.SGD([each], lr=0.1) for each in model.parameters())
    for number in range(12):
        model(torch.ones(4, 3)).mean().backward()
        first.step()
        if number % 3 == 1:
            second.step()
    # What ends the last step, if nothing else follows.
    model(torch.ones(4, 3)).mean().backward()


@case
def inside_backward() -> dict[str, Any]:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    for each in module.parameters():
        optimizer = torch.optim.SGD([each], lr=0.1)

        def step(parameter: torch.Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            parameter.grad = None

        each.register_post_accumulate_grad_hook(step)

    def train() -> None:
        for _ in range(3):
            module(torch.ones(4, 3)).mean().backward()

    found = at_boundaries(
        train, lambda: [session.stamps.activity, *(each.grad is None for each in module.parameters())]
    )
    return {"at": found}


@case
def scaler() -> dict[str, Any]:
    model, sgd = under_ddp(SlowModule(0.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses = []
    for number in range(4):
        sgd.zero_grad()
        loss = model(torch.ones(4, 3)).mean() + 1
        losses.append(loss.item())
        scaler.scale(loss * float("inf") if number == 1 else loss).backward()
        if number == 2:
            scaler.unscale_(sgd)
        scaler.step(sgd)
        scaler.update()
    return {"losses": losses}


def overflowing(every: int, *, fused: bool) -> None:
    """Mixed precision as usual: a loss that its scale makes infinite in one step of 25, and a norm that is clipped."""
    session.stamps.every = every
    model, _ = under_ddp(SlowModule(0.0))
    adam = torch.optim.AdamW(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", growth_interval=10)
    for number in range(1, 201):
        adam.zero_grad()
        loss = model(torch.ones(4, 3)).pow(2).mean() + 1
        scaler.scale(loss * 1e36 if number % 25 == 0 else loss).backward()
        scaler.unscale_(adam)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert norm.isfinite() == (number % 25 != 0)
        scaler.step(adam)
        scaler.update()
        if number == 198:
            session.stamps.every = 1


@case
def overflowing_recorded() -> None:
    overflowing(1, fused=False)


@case
def overflowing_counted() -> None:
    overflowing(8, fused=False)


@case
def overflowing_fused_recorded() -> None:
    overflowing(1, fused=True)


@case
def overflowing_fused_counted() -> None:
    overflowing(8, fused=True)


@case
def lost_under_a_scaler() -> None:
    model, sgd = under_ddp(SlowModule(0.0))
    scaler = torch.amp.GradScaler("cpu")
    for number in range(1, 21):
        sgd.zero_grad()
        scaler.scale(model(torch.ones(4, 3)).mean() * (float("nan") if number > 5 else 1)).backward()
        scaler.step(sgd)
        scaler.update()


@case
def derived_from_scaled() -> None:
    model, sgd = under_ddp(SlowModule(0.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    (scaler.scale(model(torch.ones(4, 3)).mean() + 1) / 2).backward()
    scaler.step(sgd)
    scaler.update()


def evaluating(evaluate: Callable[[Any, DataLoader[torch.Tensor]], None], delay: float = DELAY) -> None:
    model, sgd = under_ddp(SlowModule(delay))
    held_out = DataLoader(Slow(DELAY, 40), batch_size=4)
    for _ in range(4):
        for batch in DataLoader(training, batch_size=4):
            model(batch).mean().backward()
            sgd.step()
        evaluate(model, held_out)


training = Slow()


@case
def evaluation_without_gradients() -> None:
    def evaluate(model: Any, loader: DataLoader[torch.Tensor]) -> None:
        with torch.no_grad():
            for batch in loader:
                model.module(batch)

    evaluating(evaluate)


@case
def evaluation_through_ddp() -> None:
    def evaluate(model: Any, loader: DataLoader[torch.Tensor]) -> None:
        for batch in loader:
            with torch.inference_mode():
                model(batch)

    evaluating(evaluate)


@case
def evaluation_that_forgets() -> None:
    def evaluate(model: Any, loader: DataLoader[torch.Tensor]) -> None:
        for batch in loader:
            model(batch)

    evaluating(evaluate)


@case
def clipping() -> None:
    model, sgd = under_ddp(SlowModule(0.0))
    for number in range(2):
        sgd.zero_grad()
        (model(torch.ones(4, 3)).mean()).backward()
        if number == 1:
            model.module.layer.weight.grad.mul_(float("nan"))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        sgd.step()
        for parameter in model.parameters():
            parameter.data.fill_(0.5)


def spoiled(rank: int) -> None:
    """Three steps; in the second, the gradients of one rank are lost on their way back from a loss that is finite."""
    model, sgd = under_ddp(nn.Sequential(nn.Linear(3, 200), nn.Linear(200, 1)))
    for number in range(3):
        hidden = model.module[0].register_forward_hook(
            lambda _module, _inputs, outputs, bad=number == 1 and rank == RANK: (
                outputs.register_hook(lambda gradient: gradient * float("nan" if bad else 1)) and None
            )
        )
        model(torch.ones(4, 3)).mean().backward()
        hidden.remove()
        sgd.step()


@case
def spoiled_here() -> None:
    spoiled(0)


@case
def spoiled_elsewhere() -> None:
    spoiled(1)


@case
def no_loader() -> None:
    model, sgd = under_ddp(SlowModule())
    for _ in range(2):
        time.sleep(DELAY)
        model(torch.ones(4, 3)).mean().backward()
        sgd.step()


@case
def synced_by_hand() -> None:
    module = SlowModule()
    session.sees_forward = False
    sgd = torch.optim.SGD(module.parameters(), lr=1e-3)
    for batch in DataLoader(Slow(), batch_size=4):
        module(batch).mean().backward()
        time.sleep(LATE * RANK)
        for parameter in module.parameters():
            assert parameter.grad is not None
            distributed.all_reduce(parameter.grad)
        sgd.step()
    session.sees_forward = True


@case
def closure() -> None:
    model, _ = under_ddp(SlowModule())
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=2, tolerance_grad=0, tolerance_change=0)

    def evaluate() -> torch.Tensor:
        lbfgs.zero_grad()
        loss: torch.Tensor = model(torch.ones(4, 3)).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(4):
        lbfgs.step(evaluate)


@case
def losses_of_all_kinds() -> dict[str, Any]:
    module = nn.Linear(3, 1)
    sgd = torch.optim.SGD(module.parameters(), lr=1e-3)

    class Odd(torch.Tensor):
        """A subclass, as DTensor is."""

    first, second = module(torch.ones(1, 3)).sum(), module(torch.ones(1, 3)).sum() + 1
    torch.autograd.backward([first, second])
    sgd.step()
    module(torch.ones(1, 3)).sum().as_subclass(Odd).backward()
    sgd.step()
    outputs = module(torch.ones(2, 3))
    outputs.backward(torch.ones_like(outputs))
    sgd.step()
    checked = torch.utils.checkpoint.checkpoint(module, torch.ones(1, 3, requires_grad=True), use_reentrant=True)
    checked.sum().backward()
    sgd.step()
    return {"sum": first.item() + second.item()}


@case
def a_step_that_raises() -> dict[str, Any]:
    module = nn.Linear(3, 1)
    sgd = torch.optim.SGD(module.parameters(), lr=1e-3)

    def fail() -> float:
        raise KeyError("the script's own")

    raised = 0
    for number in range(3):
        module(torch.ones(1, 3)).sum().backward()
        try:
            sgd.step(fail if number == 1 else None)
        except KeyError:
            raised += 1
    return {"raised": raised}


@case
def sharded() -> None:
    from torch.distributed.fsdp import fully_shard

    model = SlowModule()
    fully_shard(model.layer)
    fully_shard(model)
    session.sees_forward = False
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(2):
        model(torch.ones(4, 3)).mean().backward()
        sgd.step()


@case
def nan() -> None:
    model, sgd = under_ddp(SlowModule(0.0))
    for number in range(14):
        (model(torch.ones(4, 3)).mean() * (float("nan") if number == 1 else 0.0)).backward()
        for parameter in model.parameters():
            parameter.grad = None
        sgd.step()


@case
def unnoted() -> dict[str, Any]:
    """The all-reduce of the second of three steps cannot be noted, by a fault of ours."""
    model, sgd = under_ddp(SlowModule(0.0))
    noted = session.collectives.begin

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("a fault of ours")

    for number in range(3):
        session.collectives.begin = fail if number == 1 else noted  # type: ignore[method-assign]
        model(torch.ones(4, 3)).mean().backward()
        sgd.step()
    fault = session.faults.last
    session.faults.count, session.faults.last = 0, None
    return {"fault": fault}


class Endless(IterableDataset[torch.Tensor]):
    """Batches for a loop that never calls an optimizer of torch."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.ones(4, 3)


@case
def own_optimizer() -> dict[str, Any]:
    module, activities = SlowModule(0.0), []
    module.layer.weight.register_hook(lambda _: activities.append(session.stamps.activity))
    for _, batch in zip(range(20), DataLoader(Endless(), batch_size=None), strict=False):
        module(batch).mean().backward()
        with torch.no_grad():
            for parameter in module.parameters():
                assert parameter.grad is not None
                parameter.sub_(1e-3 * parameter.grad)
    return {"state": session.state, "activities": sorted(set(activities)), "marks": len(session.stamps._current.marks)}


def compiled() -> dict[str, Any]:
    """Return what torch's compiler did for the usual ways to use it, by way."""
    found = {}
    for way in ("model", "inner", "optimizer"):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.manual_seed(0)
        backend = CompileCounterWithBackend("eager")
        module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        inner = torch.compile(module, backend=backend) if way == "inner" else module
        model: Any = nn.parallel.DistributedDataParallel(inner)
        if way == "model":
            model = torch.compile(model, backend=backend)
        sgd = torch.optim.SGD(module.parameters(), lr=0.1)
        step = torch.compile(lambda sgd=sgd: sgd.step(), backend=backend) if way == "optimizer" else sgd.step
        for _ in range(3):
            sgd.zero_grad()
            loss = model(torch.ones(4, 3)).pow(2).mean()
            loss.backward()
            step()
        counters = torch._dynamo.utils.counters
        found[way] = {
            "breaks": sum(counters["graph_break"].values()),
            "graphs": backend.frame_count,
            "operations": backend.op_count,
            "loss": loss.item(),
        }
    return found


def drained() -> list[dict[str, Any]]:
    """Return the records since the last call, made by the code of the agent's thread."""
    assert session._publisher is not None
    steps: list[Any] = []
    while session.stamps.finished:
        steps += session._publisher._collect()
    return [plain(step) for step in steps]


def plain(step: Any) -> dict[str, Any]:
    return {name: getattr(step, name) for name in step.__struct_fields__ if name != "collectives"} | {
        "operations": [call.op for call in step.collectives]
    }


def main() -> None:
    global session
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=RANK, world_size=2)
    without = compiled()
    torch._dynamo.reset()
    distributed.destroy_process_group()
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(RANK), "2"
    with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as folder:
        marks.write(Path(folder), marks.Mark(marks.RUN))
        directory = rundir.RunDir(Path(folder))
        (Path(folder) / "ranks").mkdir()
        session = Session(directory, run_id="cases", program="cases", log=None)
        events: list[Any] = []
        publisher = Publisher(session, directory.address(RANK, "pub"), directory.address(RANK, "cmd"))
        publisher._send = lambda topic, payload: events.append(payload)  # type: ignore[method-assign]
        session._publisher = publisher
        patches.install_with_torch(session)
        distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}-2", rank=RANK, world_size=2)
        results: dict[str, Any] = {"compiled": {"without": without, "agent": compiled()}}
        results["compiled"]["steps"] = drained()
        for each in cases:
            session.stamps.resume()
            session.health = Health()
            torch.manual_seed(0)
            extra = each()
            steps = drained()
            told = [_read(event) for event in events]
            events.clear()
            results[each.__name__] = {"steps": steps, "events": told, **(extra or {})}
        results["faults"] = [session.faults.count, session.faults.last]
        distributed.destroy_process_group()
    if RANK == 0:
        print(json.dumps(results), flush=True)


def _read(payload: bytes) -> Any:
    from ddptop.agent.wire import Event, read_telemetry

    event = read_telemetry(payload)
    assert isinstance(event, Event)
    return {"text": event.text, "level": event.level, "rank": event.rank}


if __name__ == "__main__":
    other = os.fork()
    RANK = 0 if other else 1
    main()
    if other:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
