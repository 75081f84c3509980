"""The loop of nanoGPT's `train.py`, under torchrun: micro steps without synchronization, and a line for each step.

After https://github.com/karpathy/nanoGPT (MIT), with a model of one layer.
"""

import os
import time

import torch
from torch import nn
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
gradient_accumulation_steps = 2
init_process_group(backend="gloo")
ddp_rank = int(os.environ["RANK"])
os.write(1, f"rank {ddp_rank} is {os.getpid()}\n".encode())
master_process = ddp_rank == 0
model = DistributedDataParallel(nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
iter_num = 0
while True:
    t0 = time.time()
    for micro_step in range(gradient_accumulation_steps):
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        tokens = torch.randint(64, (4, 8))
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.view(-1, 64), tokens.view(-1)) / gradient_accumulation_steps
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    time.sleep(0.05)
    if master_process:
        print(f"iter {iter_num}: loss {loss.item():.4f}, time {1000 * (time.time() - t0):.2f}ms", flush=True)
    iter_num += 1
