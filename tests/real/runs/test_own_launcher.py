"""A script that starts its other ranks itself, by its own command line, as the trainer of Lightning does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.harness import ddptop, until, write_script

from ddptop.agent.client import runs
from ddptop.agent.client.look import frames
from ddptop.agent.run import rundir
from ddptop.tui.cli.output.status import as_json, run_json

SCRIPT = '''
"""The first process is rank 0 and starts the others; each draws from data workers that come and go with an epoch."""
import os, subprocess, sys, time
if "LOCAL_RANK" not in os.environ:
    told = {"MASTER_ADDR": "127.0.0.1", "NODE_RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    child = subprocess.Popen([sys.executable, os.path.abspath(sys.argv[0])], env={**os.environ, **told})
import light, torch, torch.distributed as dist

if __name__ == "__main__":
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=2)
    model = torch.nn.Linear(4, 2)
    optimizer = light.Descent(model)
    data = torch.utils.data.TensorDataset(torch.randn(80, 4))
    while True:
        for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1):
            model(batch).sum().backward()
            optimizer.step()
            time.sleep(0.01)
        dist.barrier()
'''


def test_ps_and_status_agree(tmp_path: Path) -> None:
    """Both say running, with a step that grows, over epochs whose data workers end; rank 0 is the first process."""
    path = write_script(tmp_path, SCRIPT)
    launched = ddptop("launch", "--start", "spawn", "--detach", "--world", "2", str(path), cwd=tmp_path)
    assert launched.returncode == 0, launched.stderr
    name = launched.stdout.strip()

    def look() -> tuple[dict[str, Any], dict[str, Any]]:
        (frame,) = frames([runs.find(name)], "test")
        (other,) = frames([runs.find(name)], "test")
        return as_json(frame), run_json(other)

    def look_from_outside() -> tuple[dict[str, Any], dict[str, Any]]:
        rows = json.loads(ddptop("ps", "--json").stdout)
        return json.loads(ddptop("status", name, "--json").stdout), next(row for row in rows if row["run"] == name)

    def steps(look: Callable[[], tuple[dict[str, Any], dict[str, Any]]]) -> tuple[int, int] | None:
        status, row = look()
        assert status["state"] == row["state"] or "starting" in (status["state"], row["state"])
        if status["state"] != "running" or row["state"] != "running" or not status["step"] or not row["step"]:
            return None
        assert [rank["state"] for rank in status["ranks"]] == ["running", "running"]
        assert status["ranks"][0]["pid"] == status["pid"] != status["ranks"][1]["pid"]
        return status["step"], row["step"]

    # An epoch is 20 steps.
    until(lambda: (found := steps(look)) is not None and 60 < found[0] <= found[1], "three epochs are trained")
    # Onlookers that hear nothing for two seconds go by the records, which say less.
    until(lambda: steps(look_from_outside), "other processes say the same")
    directory = rundir.find(name)
    assert ddptop("kill", name).returncode == 0
    until(lambda: directory.read().state == "killed", "the run is over")
