"""Inspections of ranks, made up: a rank that waits in an all-reduce, one that never came, one seen from outside."""

from __future__ import annotations

from typing import Any

import msgspec

from ddptop.agent import wire

S = 10**9
CALL = wire.OpenCall("all_reduce", "0", 1204, 4 << 20, 12 * S, blocking=True)
GROUP = wire.GroupCalls("0", 1204, recent=(wire.PastCall("all_reduce", 4 << 20),))
WAITS = (
    wire.Frame("all_reduce", "torch/distributed/distributed_c10d.py", 2809, "work.wait()", library=True),
    wire.Frame("wrapper", "torch/distributed/c10d_logger.py", 81, "return func(*args, **kwargs)", library=True),
    wire.Frame("average", "train.py", 40, "dist.all_reduce(parameter.grad)"),
    wire.Frame("main", "train.py", 33, "average(model)"),
    wire.Frame("<module>", "train.py", 52, "main()"),
    wire.Frame("run", "runpy.py", 88, "exec(code, run_globals)", library=True),
)
SLEEPS = (
    wire.Frame("main", "train.py", 31, "time.sleep(3600)"),
    wire.Frame("<module>", "train.py", 52, "main()"),
)
MODEL = (
    wire.Frame("linear", "torch/nn/functional.py", 2000, library=True),
    wire.Frame("forward", "torch/nn/modules/linear.py", 125, library=True),
    wire.Frame("_call_impl", "torch/nn/modules/module.py", 1750, library=True),
    wire.Frame("_wrapped_call_impl", "torch/nn/modules/module.py", 1739, library=True),
    wire.Frame("forward", "model.py", 7, "return self.head(self.body(x))"),
    wire.Frame("_call_impl", "torch/nn/modules/module.py", 1750, library=True),
    wire.Frame("_wrapped_call_impl", "torch/nn/modules/module.py", 1739, library=True),
    wire.Frame("main", "train.py", 28, "loss = criterion(model(images), labels)"),
)


def thread(frames: tuple[wire.Frame, ...], name: str = "MainThread", **changes: Any) -> wire.Thread:
    """Return a thread, the main one by its name."""
    return msgspec.structs.replace(wire.Thread(name, frames, name == "MainThread"), **changes)


def inspection(rank: int, **changes: Any) -> wire.Inspection:
    """Return a rank that has stood in an all-reduce for 12 s, as its agent tells it."""
    waits = wire.Inspection(
        rank, 10**18, "agent", 4711 + rank, "running", "backward", 1203, (thread(WAITS),), open=(CALL,),
        groups=(GROUP,), observed=True, status="sleeping", cpu_percent=0.4,
    )  # fmt: skip
    return msgspec.structs.replace(waits, **changes)


def absent(rank: int, **changes: Any) -> wire.Inspection:
    """Return a rank that sleeps in a line of the user's, one call behind the others."""
    group = msgspec.structs.replace(GROUP, calls=1203)
    sleeps: dict[str, Any] = {"threads": (thread(SLEEPS),), "open": (), "groups": (group,)}
    return inspection(rank, **{**sleeps, **changes})


def stopped(rank: int, **changes: Any) -> wire.Inspection:
    """Return a rank that only the system tells of."""
    told = wire.Inspection(
        rank, 10**18, "system", 4711 + rank, status="stopped", cpu_percent=0.0,
        problem="no stack: py-spy is not installed; pip install 'ddptop[stacks]'",
    )  # fmt: skip
    return msgspec.structs.replace(told, **changes)


def hung(world: int = 4, culprit: int = 1) -> tuple[wire.Inspection, ...]:
    """Return a group of which one rank never came."""
    return tuple(absent(rank) if rank == culprit else inspection(rank) for rank in range(world))
