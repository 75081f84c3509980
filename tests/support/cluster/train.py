"""The training of tests on several hosts; knows nothing of ddptop. Works in the current folder, which all ranks share.

It counts the steps that it has begun in `count-RANK` and writes `first-RANK` after the first one. A file `slow` with a
rank and milliseconds makes that rank slow as long as it is there, one `leak` with a rank has it keep a tensor of each
step, one `stop` ends it, one `raise` with a rank lets that one fail. With a number as argument it trains so many steps,
under DDP. It prints a digest of its parameters at its end.
"""

import hashlib
import mmap
import os
import struct
import sys
import time
from pathlib import Path

import light  # type: ignore[import-not-found]  # before torch
import torch
import torch.distributed as dist
from torch import nn

STEP_S = 0.04
PATIENCE = 5  # steps between two looks at the files
MOST_KEPT = 2000  # tensors of 64 KiB

steps = int(sys.argv[1]) if len(sys.argv) > 1 else sys.maxsize
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
trained: nn.Module = model
if steps < sys.maxsize:
    trained = nn.parallel.DistributedDataParallel(model)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(trained.parameters(), lr=0.05, momentum=0.9)
else:
    optimizer = light.Descent(model)
torch.manual_seed(rank)

path = Path(f"count-{rank}")
path.write_bytes(bytes(8))
with path.open("r+b") as file:
    count = mmap.mmap(file.fileno(), 8)


def told(name: str) -> list[int]:
    """Return the numbers that a file holds, none where it is not there."""
    try:
        return [int(word) for word in Path(name).read_text().split()]
    except OSError:
        return []


slow_s = 0.0
kept: list[torch.Tensor] = []
leaking = False
for step in range(1, steps + 1):
    count[:] = struct.pack("<q", step)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(trained(torch.randn(8, 16)), torch.randn(8, 4))
    time.sleep(slow_s + (0 if steps < sys.maxsize else STEP_S))
    loss.backward()
    optimizer.step()
    if leaking and len(kept) < MOST_KEPT:
        kept.append(torch.ones(128, 128))
    if step == 1:
        Path(f"first-{rank}").write_text(f"{os.getpid()}")
    if step % PATIENCE == 0:
        given = told("slow")
        slow_s = given[1] / 1e3 if given and given[0] == rank else 0.0
        leaking = told("leak") == [rank]
        if told("raise") == [rank]:
            raise RuntimeError("told to fail")
        # All ranks leave at the same step.
        leaving = torch.tensor(float(Path("stop").exists()))
        dist.all_reduce(leaving)
        if leaving.item():
            break
state = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
print(f"digest {rank} {hashlib.sha256(state).hexdigest()}", flush=True)
dist.destroy_process_group()
