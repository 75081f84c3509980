"""A loop over `subprocess`: the ranks get their numbers as arguments, and nothing by their environment."""

import os
import subprocess
import sys
import time

if len(sys.argv) < 3:
    ranks = [subprocess.Popen([sys.executable, __file__, sys.argv[1], "--rank", str(each)]) for each in (1, 0)]
    sys.exit(max(each.wait() for each in ranks))

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[3]), world_size=2)
os.write(1, f"rank {dist.get_rank()} is {os.getpid()}\n".encode())
model = DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
while True:
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
