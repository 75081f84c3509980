"""A loop of DDP over gloo as anybody writes it, for ever; ranks by environment, and nothing of ddptop in it."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
os.write(1, f"rank {dist.get_rank()} is {os.getpid()}\n".encode())
model = DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
while True:
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
