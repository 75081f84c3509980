"""Stands still on two ranks in one place after the other, each until its file is made in the folder that is given.

Run by the runner. Each rank makes a file for each place at which it is about to stand.
With NO_HOOKS set, torch's own hooks are taken away first; with ONLY_COUNTED no step is recorded after the first.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddptop import agent
from ddptop.agent.rank.inspection import inspecting

if "NO_HOOKS" in os.environ and hasattr(dist.ProcessGroup, "register_pre_hook"):
    del dist.ProcessGroup.register_pre_hook

session: Any = agent._listener
folder = Path(sys.argv[1])
rank = int(os.environ["RANK"])


def stand(place: str) -> None:
    """Say that the next thing that this rank does is to stand there."""
    (folder / f"{place}-{rank}").touch()


def sleep_until(place: str) -> None:
    """Sleep until the test has looked."""
    stand(place)
    while not (folder / f"go-{place}").exists():
        time.sleep(0.01)  # it sleeps here


dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=2)
x = torch.ones(1000)
pair: Any = dist.new_group([0, 1])
dist.all_reduce(x)
if "ONLY_COUNTED" in os.environ:
    session.stamps.every = 1 << 30
    session.end_step()
    assert not session.stamps.recording
for _ in range(2):
    dist.all_reduce(x)
dist.broadcast(x, 0, group=pair)

# Rank 1 sleeps before a call in which rank 0 stands.
if rank == 0:
    stand("late")
else:
    sleep_until("late")
dist.all_reduce(x)  # rank 0 stands here

# One message is on its way.
if rank == 0:
    stand("message")
    dist.recv(x, 1)
else:
    sleep_until("message")
    dist.send(x, 0)

# DDP's buckets: rank 1 has not begun its backward pass.
ddp = DistributedDataParallel(nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 1)))
for _ in range(2):
    ddp(torch.randn(2, 1000)).sum().backward()
loss = ddp(torch.randn(2, 1000)).sum()
if rank == 0:
    stand("buckets")
else:
    sleep_until("buckets")
loss.backward()

# Calls of which completion is not reported, as where there are very many: the one that blocks is known all the same,
# and of two that are only begun torch's own record tells which is complete.
session.collectives.timed_every = 1 << 30
session.end_step()
dist.all_reduce(x)
if rank == 0:
    stand("untimed")
else:
    sleep_until("untimed")
dist.all_reduce(x)
works = [dist.all_reduce(torch.ones(7), async_op=True)]
if rank == 0:
    works.append(dist.all_reduce(torch.ones(9), async_op=True))
    # Torch's record is read only where the rank has called nothing for a while.
    called = session.collectives.now()
    while session.collectives.now() - called <= inspecting._STILL_NS:
        time.sleep(0.01)
sleep_until("begun")
if rank == 1:
    works.append(dist.all_reduce(torch.ones(9), async_op=True))
for work in works:
    work.wait()
session.collectives.timed_every = 1
session.end_step()

# A functional collective, which blocks where its result is used.
functional.all_reduce(x, "sum", pair).wait()  # the first one imports for seconds
if rank == 0:
    stand("functional")
else:
    sleep_until("functional")
functional.all_reduce(x, "sum", pair) + 1

dist.barrier()
sleep_until("done")
dist.destroy_process_group(pair)
dist.destroy_process_group()
