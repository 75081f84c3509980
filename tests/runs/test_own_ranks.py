"""A script under `python -m ddptop.agent`, with no launcher, that starts its ranks by `torch.multiprocessing`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.harness import DEADLINE_S, ddptop, until, write_script

from ddptop.agent.run import rundir

SPAWN = """
import os, time, light, torch, torch.multiprocessing as mp, torch.distributed as dist

def main(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{os.getcwd()}/store")
    net = torch.nn.Linear(4, 2)
    optimizer = light.Descent(net)
    with open(f"pid-{rank}", "w") as told:
        told.write(str(os.getpid()))
    is_over = torch.zeros(1)
    while not is_over:
        net(torch.ones(4, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.01)
        # All leave after the same step.
        is_over += os.path.exists("end")
        dist.all_reduce(is_over)

if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
"""


def test_spawned_processes_are_the_ranks_of_the_run(tmp_path: Path) -> None:
    """Both make steps, with their own pids, in the one run of the script; it finishes when they have."""
    path = write_script(tmp_path, SPAWN)
    script = subprocess.Popen([sys.executable, "-m", "ddptop.agent", str(path)], cwd=tmp_path)
    try:
        # Three processes load torch for it, the first one before the two ranks.
        both = [tmp_path / f"pid-{rank}" for rank in range(2)]
        until(lambda: all(each.exists() for each in both), "both ranks have begun", 4 * DEADLINE_S)
        # Earlier tests may have left runs of their own.
        (directory,) = (each for each in rundir.runs() if each.read().program == str(path))

        def running() -> list[dict[str, Any]]:
            ranks = json.loads(ddptop("status", directory.name, "--json").stdout)["ranks"]
            return ranks if len(ranks) == 2 and all(rank["step"] for rank in ranks) else []

        ranks = until(running, "both ranks make steps")
        assert [str(rank["pid"]) for rank in ranks] == [(tmp_path / f"pid-{rank}").read_text() for rank in range(2)]
        (tmp_path / "end").touch()
        assert script.wait(DEADLINE_S) == 0
    finally:
        script.kill()
        script.wait()
    until(lambda: directory.read().state == "finished", "the run is over")
    assert "in which nothing is seen" not in ddptop("events", directory.name).stdout
