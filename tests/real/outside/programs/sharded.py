"""FSDP2 over gloo, under torchrun."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
dist.init_process_group("gloo")
os.write(1, f"rank {dist.get_rank()} is {os.getpid()}\n".encode())
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
mesh = init_device_mesh("cpu", (2,))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
while True:
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
