"""Does every kind of collective on two ranks, and prints what the agent saw of each as JSON.

Run by the runner, with the file at which the ranks meet. With NO_HOOKS set, torch's own hooks are taken away first.
"""

from __future__ import annotations

import copy
import gc
import itertools
import json
import os
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed import all_reduce as imported_by_name
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ddptop import agent
from ddptop.agent.rank.records import meter
from ddptop.agent.rank.records.stamps import OTHER

if "NO_HOOKS" in os.environ and hasattr(dist.ProcessGroup, "register_pre_hook"):
    del dist.ProcessGroup.register_pre_hook

session: Any = agent._listener
stamps = session.stamps
report: dict[str, Any] = {}
rank = int(os.environ["RANK"])
numbers = itertools.count()
BUSY_S = 300
"""Seconds for what is sure to come, also on a machine with many times as much work as cores."""


def watch(name: str, work: Callable[[], Any]) -> Any:
    """Do `work`, begun on both ranks at the same time, and note what was seen of it."""
    dist.barrier()
    stamped = stamps._current
    stamped.calls.clear()
    stamped.waits.clear()
    begin = stamps.clock()
    result = work()
    end = stamps.clock()
    deadline = time.monotonic() + BUSY_S
    while any(call.expected and call.duration is None for call in stamped.calls) and time.monotonic() < deadline:
        time.sleep(0.001)
    # What the agent would make of it, were this a step.
    step = copy.copy(stamped)
    step.marks = [(begin, OTHER), *(mark for mark in stamped.marks if mark[0] >= begin)]
    step.moments, step.clock, step.end, step.observed = [], None, stamps.clock(), True
    record = meter.record(step)
    report[name] = {
        "took": end - begin,
        "blocked": record.wait_ns,
        "calls": [
            {
                "op": seen.op, "bytes": seen.bytes, "group": seen.group, "duration": seen.duration_ns,
                "blocking": seen.blocking, "deferred": call.deferred,
            }
            for seen, call in zip(record.collectives, stamped.calls, strict=True)
        ],
    }  # fmt: skip
    return result


def nap(work: Callable[[], Any]) -> Callable[[], Any]:
    """Come 400 ms late on rank 1."""

    def late() -> Any:
        if rank == 1:
            time.sleep(0.4)
        return work()

    return late


def last(work: Callable[[], Any]) -> Callable[[], Any]:
    """Come to it on rank 1 once rank 0 has stood in it for a tenth of a second, however busy the machine is."""
    begun = Path(sys.argv[1]).with_name(f"begun-{next(numbers)}")

    def late() -> Any:
        if rank == 0:
            begun.touch()
            return work()
        while not begun.exists():
            time.sleep(0.001)
        still, before = 0, ""
        while still < 10:
            time.sleep(0.01)
            # Its time on a core, in ns; and that it waits for something else than a core.
            now = Path(f"/proc/{waits}/schedstat").read_text().split()[0]
            sleeps = Path(f"/proc/{waits}/stat").read_text().rpartition(")")[2].split()[0] == "S"
            still, before = (still + 1 if sleeps and now == before else 0), now
        return work()

    return late


communicated = [session.collectives.communicated]
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
communicated.append(session.collectives.communicated)
x = torch.ones(1000)
if rank == 0:
    dist.send(x, 1)
else:
    dist.recv(x, 0)
report["communicated"] = [*communicated, session.beat(0, 0).communicated]
pids: list[Any] = [None, None]
dist.all_gather_object(pids, os.getpid())
waits = pids[0]
watch("all_reduce", last(lambda: dist.all_reduce(x)))
watch("by name", lambda: imported_by_name(x))
work = watch("asynchronous", nap(lambda: dist.all_reduce(x, async_op=True)))
watch("its wait", work.wait)
watch("barrier", dist.barrier)
watch("send and recv", last(lambda: dist.send(x, 1) if rank == 0 else dist.recv(x, 0)))


def member_of(group: dist.ProcessGroup | int | None) -> dist.ProcessGroup:
    """Return the group, of which this rank is a member."""
    assert isinstance(group, dist.ProcessGroup)
    return group


def exchange() -> None:
    for work in [dist.isend(x, 1 - rank), dist.irecv(torch.empty(1000), 1 - rank)]:
        assert work is not None
        work.wait()


watch("isend and irecv", exchange)
watch("all_gather", lambda: dist.all_gather([torch.empty(1000), torch.empty(1000)], x))
watch("reduce_scatter", lambda: dist.reduce_scatter_tensor(torch.empty(500), x))
sub = member_of(dist.new_group([0, 1]))
watch("group", lambda: dist.all_reduce(x, group=sub))
world = member_of(dist.group.WORLD)
functional.all_reduce(x, "sum", world).wait()  # the first one imports for seconds
watch("functional", last(lambda: functional.all_reduce(x, "sum", world) + 1))
watch("monitored barrier", last(lambda: dist.monitored_barrier()))
report["torch"] = [int(part) for part in torch.__version__.split(".")[:2]]
if report["torch"] >= [2, 15]:  # earlier ones split no group of gloo
    split = member_of(dist.split_group(split_ranks=[[0, 1]]))
    watch("split group", lambda: dist.all_reduce(x, group=split))
mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("rows", "columns"))
watch("mesh", lambda: dist.all_reduce(x, group=mesh.get_group("rows")))


def kept() -> Any:
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    (dist.send if rank == 0 else dist.recv)(tensor, 1 - rank)
    return weakref.ref(tensor)


gone = kept()
deadline = time.monotonic() + BUSY_S
while gone() is not None and time.monotonic() < deadline:
    gc.collect()
report["kept alive"] = gone() is not None

model = nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10), nn.Linear(10, 1))
ddp = DistributedDataParallel(model)
for _ in range(2):
    loss = watch("forward", last(lambda: ddp(torch.randn(4, 10)).sum()))
    watch("backward", last(loss.backward))

other = DistributedDataParallel(nn.Linear(10, 1))
used: list[int] = []


def comm_hook(state, bucket):  # DDP refuses annotations that are strings
    used.append(bucket.index())
    return default_hooks.fp16_compress_hook(state, bucket)


other.register_comm_hook(None, comm_hook)
loss = other(torch.full((4, 10), rank + 1.0)).sum()
watch("comm hook", loss.backward)
report["comm hook used"] = bool(used)
gradient = next(other.parameters()).grad
assert gradient is not None
report["comm hook gradient"] = gradient[0, 0].item()


def backward_of(name: str, module: nn.Module, batch: torch.Tensor) -> None:
    """Look at the second backward pass, in which DDP's buckets are those of all others."""
    wrapped = DistributedDataParallel(module)
    for _ in range(2):
        outputs = wrapped(batch)
        loss = torch.view_as_real(outputs).sum() if outputs.is_complex() else outputs.sum()
        watch(name, last(loss.backward))


for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.complex64):
    linear = nn.Linear(10, 1).to(dtype)
    backward_of(f"backward in {dtype}", linear, torch.ones(4, 10, dtype=dtype))
backward_of("backward of sparse gradients", nn.Embedding(20, 3, sparse=True), torch.arange(4))

sharded = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
for layer in sharded:
    fully_shard(layer)
fully_shard(sharded)
loss = watch("fsdp forward", last(lambda: sharded(torch.randn(4, 8)).sum()))
watch("fsdp backward", loss.backward)

report["mechanism"] = session.collectives.mechanism
report["outstanding"] = session.collectives.outstanding
report["faults"] = session.faults.last
if rank == 0:
    print("REPORT", json.dumps(report), flush=True)
dist.destroy_process_group(sub)
dist.destroy_process_group()
