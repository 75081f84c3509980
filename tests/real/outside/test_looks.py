"""A plain job with a slow rank, met by its pid: what looks from outside say of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.harness import DDPTOP, started, status, until

from ddptop.agent.client import runs
from ddptop.agent.observer.inspection import dumps
from ddptop.agent.run import rundir

SCRIPT = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def prepare(batch):
    time.sleep(0.1 * rank)
    return batch * 2

for step in range(1_000_000):
    loss = model(prepare(torch.randn(8, 16))).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and step % 10 == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
"""


@pytest.mark.skipif(dumps.executable() is None, reason="py-spy is not installed")
def test_a_slow_rank_is_named_with_its_line_and_steps_come_from_the_log(tmp_path: Path) -> None:
    """Before its steps are known; the error of each share is said, and the looks cost at most 3 % of a core a rank."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", rundir.BASE_VARIABLE: str(rundir.base())}
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script))
    log = tmp_path / "out.log"
    with (
        open(log, "w") as output,
        started(*command, cwd=tmp_path, stdout=output, stderr=output, env=environment) as process,
    ):
        until(lambda: "step 10 " in log.read_text(), "the training")
        with started(*DDPTOP, "attach", str(process.pid), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as attached:
            output_of = attached.stdout
            assert output_of is not None
            said = until(lambda: named(output_of.readline()), "a verdict") or ""
            now = status(runs.of_process(process.pid).name)
        process.terminate()
        process.wait()
    assert said.startswith("rank 1 holds the group back: it waits ")
    assert "train.py:9 prepare" in said
    slow, other = now["ranks"][1]["by_looks"], now["ranks"][0]["by_looks"]
    assert other["shares"]["wait"] - slow["shares"].get("wait", 0) > 5 * max(slow["errors"].values())
    assert slow["line"] == "train.py:9 prepare"
    assert now["from_log"]
    assert now["step"] % 10 == 0 < now["step"]
    assert max(slow["cost_percent"], other["cost_percent"]) < 3


def named(line: str) -> str | None:
    """Return the verdict in a line of the plain output."""
    _, found, rest = line.partition("rank 1 holds")
    return found + rest if found else None
