"""What two ranks have computed in unusual loops is the same with and without the agent, bit for bit."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.harness import status, write_script
from support.processes.ranks import observed, plain

from ddptop.agent.run.switches.recording import VARIABLE

SCRIPT = """
import hashlib, sys
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
parameters, how, count = list(net.parameters()), sys.argv[1], 0
batches = torch.Generator().manual_seed(dist.get_rank())

def loss_of(model):
    return model(torch.randn(8, 16, generator=batches)).square().mean()

if how == "in a row":
    model = nn.parallel.DistributedDataParallel(net)
    optimizers = torch.optim.SGD(parameters[:2], lr=0.1, momentum=0.9), torch.optim.AdamW(parameters[2:])
    for _ in range(100):
        loss_of(model).backward()
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        count += 1
elif how == "in backward":
    from torch.distributed.optim import _apply_optimizer_in_backward

    # Not under DDP, whose hook for such optimizers needs a device; the ranks average their parameters.
    _apply_optimizer_in_backward(torch.optim.SGD, parameters, {"lr": 0.1})
    for _ in range(100):
        loss_of(net).backward()
        with torch.no_grad():
            for each in parameters:
                dist.all_reduce(each)
                each /= 2
        count += 1
elif how == "sharded":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for layer in (net[0], net[3], net):
        fully_shard(layer, mesh=mesh)
    parameters = list(net.parameters())
    optimizer = torch.optim.AdamW(parameters)
    for _ in range(100):
        loss_of(net).backward()
        optimizer.step()
        optimizer.zero_grad()
        count += 1
elif how == "scaled":
    model = nn.parallel.DistributedDataParallel(net)
    optimizer, scaler = torch.optim.SGD(parameters, lr=0.1), torch.amp.GradScaler("cpu", growth_interval=10)
    skipped = 0
    for number in range(100):
        scaled = scaler.scale(loss_of(model) * (1e36 if number % 20 == 10 else 1.0))
        scaled.backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
        optimizer.zero_grad()
        count += 1
    assert skipped == 5
elif how == "checkpointed":
    from torch.utils.checkpoint import checkpoint

    # A region whose normalization counts its calls, with the division of the loss inside.
    norm, scale = nn.BatchNorm1d(4), nn.Parameter(torch.tensor(4.0))
    parameters += [norm.running_mean, norm.running_var, norm.num_batches_tracked]
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD([*net.parameters(), scale], lr=0.1)
    for _ in range(100):
        outputs = model(torch.randn(8, 16, generator=batches))
        loss = checkpoint(lambda it: norm(it * 2).exp().mean() / scale, outputs, use_reentrant=False)
        loss.backward()
        dist.all_reduce(scale.grad)
        optimizer.step()
        optimizer.zero_grad()
        count += 1
elif how == "marked":
    from ddptop import agent

    model = nn.parallel.DistributedDataParallel(net)
    for _ in range(100):
        loss_of(model).backward()
        with torch.no_grad():
            for each in parameters:
                each -= 0.1 * each.grad
                each.grad = None
        agent.step()
        count += 1

digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
for each in parameters:
    whole = each.full_tensor() if hasattr(each, "full_tensor") else each
    digest.update(whole.detach().numpy().tobytes())
# One write: ranks may share a pipe.
sys.stdout.write(f"rank {dist.get_rank()}: {count} {digest.hexdigest()}\\n")
sys.stdout.flush()
dist.destroy_process_group()
"""


HOW = ("in a row", "in backward", "sharded", "scaled", "checkpointed", "marked")


def name_of(how: str) -> str:
    return f"bits-{how.replace(' ', '-')}"


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """What the ranks have printed in each way without the agent and with it; several run at once."""
    folders = {how: tmp_path_factory.mktemp("bits") for how in HOW}

    def train(how: str) -> tuple[str, str]:
        path = write_script(folders[how], SCRIPT)
        with plain(path, how) as without:
            without.wait()
        with observed(name_of(how), path, how, env={VARIABLE: "8"}) as (_, ranks):
            assert ranks.wait() == 0, ranks.said
        return without.said, ranks.said

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(HOW, pool.map(train, HOW), strict=True))


@pytest.mark.parametrize("how", HOW)
def test_parameters_are_those_of_a_run_without_the_agent(printed: dict[str, tuple[str, str]], how: str) -> None:
    """And the agent has counted the steps that the script has, of which it has recorded some."""
    without, with_agent = printed[how]
    assert len(found(without)) == 2, without
    assert found(with_agent) == found(without)
    told = status(name_of(how))
    assert [rank["step"] for rank in told["ranks"]] == [100, 100]
    assert [rank["fault"] for rank in told["ranks"]] == [None, None]


def found(text: str) -> dict[str, str]:
    """Return what each rank has printed at its end."""
    return dict(re.findall(r"rank (\d): (\d+ [0-9a-f]{64})", text))
