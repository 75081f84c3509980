"""Training scripts that the tests run, none of which knows of ddptop."""

from __future__ import annotations

TRAIN = '''
"""A small conv net with BatchNorm under DDP; prints every loss; trains STEPS steps; after 20 a digest of its state."""
import hashlib, os, pathlib, sys, datetime, time
import light, torch, torch.distributed as dist, torch.nn as nn

steps = int(sys.argv[1])
dist.init_process_group("gloo")
torch.manual_seed(1)
layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(144, 10)
model = nn.Sequential(*layers)
ddp = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
torch.manual_seed(dist.get_rank())
data = torch.utils.data.TensorDataset(torch.randn(64, 1, 8, 8), torch.randint(0, 10, (64,)))
done = 0
while done < steps:
    for images, labels in torch.utils.data.DataLoader(data, batch_size=16):
        # Short only while somebody asks for it: a busy machine may take seconds to start a rank.
        seconds = 4 if pathlib.Path("impatient").exists() else 300
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=seconds), dist.group.WORLD)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(images), labels)
        loss.backward()
        optimizer.step()
        if steps > 1000:  # one that goes on until it is ended leaves the cores to the others
            time.sleep(0.05)
        done += 1
        if pathlib.Path("flaky").exists() and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise RuntimeError(f"once, in step {done}")
        print("loss", done, repr(loss.item()), flush=True)
        if done == 20:
            state = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
            # One write: ranks may share a pipe.
            sys.stdout.write(f"digest {dist.get_rank()} {hashlib.sha256(state).hexdigest()}\\n")
            sys.stdout.flush()
        if done == steps:
            break
dist.destroy_process_group()
'''

UNTIDY = '''
"""One rank that trains and leaves without destroying its process group, as many scripts do."""
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
print("trained", flush=True)
'''

OBEDIENT = '''
"""Trains until it is stopped; counts its own steps in a file, saves on request, and tells that it left in order."""
import atexit, datetime, os, pathlib, sys, time
import light, torch, torch.distributed as dist
import ddptop.agent as agent

folder = pathlib.Path(sys.argv[1])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
rank = dist.get_rank()
model = torch.nn.Linear(8, 2)
optimizer = light.Descent(model)
done = 0

@agent.on_checkpoint
def save(step):
    steps = torch.tensor([step])
    dist.all_reduce(steps)  # a function may use collectives: all ranks are in it
    assert steps.item() == step * dist.get_world_size()
    if (folder / "fail").exists() and rank == 1:
        raise OSError("the disk is full")
    path = folder / f"checkpoint-{rank}"
    path.write_text(f"{step} {done}")
    return path if rank == 0 else None

atexit.register(lambda: (folder / f"atexit-{rank}").touch())
try:
    while True:
        done += 1  # counted before it is made: the rank is held inside of it
        (folder / f"next-{rank}").write_text(str(done))
        os.replace(folder / f"next-{rank}", folder / f"count-{rank}")  # who reads it finds a number at any time
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        time.sleep(0.05)  # leaves the cores to the others
finally:
    dist.barrier()  # all ranks leave at the same step
    (folder / f"finally-{rank}").touch()
'''
