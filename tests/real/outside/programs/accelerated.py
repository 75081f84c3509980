# mypy: ignore-errors
# The framework is no dependency of the tests: where it is missing, the program is left out.
"""A loop by Accelerate."""

import os
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
os.write(1, f"rank {accelerator.process_index} is {os.getpid()}\n".encode())
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
data = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=4)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
while True:
    for (batch,) in data:
        optimizer.zero_grad()
        accelerator.backward(model(batch).sum())
        optimizer.step()
        time.sleep(0.05)
