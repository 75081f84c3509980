"""Ranks that a program spawns itself: numbered as documented, and watched like any other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import late
from support.harness import ddptop, free_port, status, until, write_script

from ddptop.agent.run import rundir

if TYPE_CHECKING:
    from ddptop.trainers.programs.primitives import sendrecv
    from ddptop.trainers.rank import start

_imports = late.imports(globals())

FAILING = '''
"""Spawns two ranks, of which the second fails while the first waits for it."""
import light, torch, torch.distributed as dist, torch.multiprocessing as mp

def rank(number, world):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:{port}", rank=number, world_size=world)
    print("rank", number, "is in", flush=True)
    if number == 1:
        raise RuntimeError("the third shard is missing")
    dist.all_reduce(torch.ones(1))

if __name__ == "__main__":
    mp.spawn(rank, (2,), nprocs=2)
'''


def test_ranks_over_two_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two machines starts the program once: rank = node_rank * per_node + local_rank."""
    told = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name in told:
        monkeypatch.setenv(name, "")  # so that what the ranks set is taken back
    seen = []

    def be_ranks(function: Callable[..., None], given: tuple[object, ...], nprocs: int) -> None:
        for local_rank in range(nprocs):
            function(local_rank, *given)

    def note(arguments: list[str]) -> int:
        seen.append([os.environ[name] for name in told])
        return 0

    program = sendrecv.main
    monkeypatch.setattr(start, "spawn", be_ranks)
    monkeypatch.setattr(sendrecv, "main", note)
    for node in ("0", "1"):
        monkeypatch.delenv("RANK")
        options = ("--world", "6", "--nodes", "2", "--master-addr", "host-a", "--master-port", "29511")
        assert program(["--start", "spawn", *options, "--node-rank", node]) == 0
    assert seen == [[str(rank), str(rank % 3), "6", "3", "host-a", "29511"] for rank in range(6)]


def test_spawned_ranks_are_watched(runtime: Path) -> None:
    """Launched with --start spawn, both ranks report, log to their files, hold at one step, go on and can be killed."""
    # Slowed down, so that it leaves the cores to the commands.
    slow = ("--inject", "rank=0,phase=optimizer,ms=10")
    words = ("launch", "--start", "spawn", "--detach", "--world", "2", *slow, "toy", "--", "--steps", "1000000")
    launched = ddptop(*words)
    assert launched.returncode == 0, launched.stderr
    name = launched.stdout.strip()
    log = rundir.find(name).rank_log(1)
    # A pause before the first step waits for it, but not as long as a busy machine may take to get there.
    until(lambda: "step 1:" in log.read_text(), "rank 1 has made its first step")
    assert (paused := ddptop("pause", name)).returncode == 0, paused.stderr
    ranks = status(name)["ranks"]
    assert [rank["state"] for rank in ranks] == ["paused", "paused"]
    held = ranks[0]["step"]
    assert ranks[1]["step"] == held > 0
    assert ddptop("resume", name).returncode == 0
    until(lambda: f"rank 1, step {held + 100}:" in log.read_text(), "rank 1 has gone on")
    assert "2 ranks" in (killed := ddptop("kill", name)).stdout
    assert "0 left" in killed.stdout
    events = ddptop("events", name).stdout
    assert "the program started" in events
    assert "torchrun" not in events


def test_failure_of_a_spawned_rank(tmp_path: Path) -> None:
    """A script that spawns its ranks and knows nothing of ddptop: the first cause is told, with its rank."""
    script = write_script(tmp_path, FAILING.replace("{port}", str(free_port())), "failing.py")
    done = ddptop("launch", "--start", "spawn", "--world", "2", str(script))
    assert done.returncode == 1, done.stdout
    assert "rank 1: RuntimeError: the third shard is missing" in done.stdout + done.stderr


def test_another_sitecustomize_still_runs(tmp_path: Path) -> None:
    """The one that Python would have found is run as well, and helpers of a run get no more than that."""
    from ddptop.agent.startup import pythonpath

    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    environment.update(pythonpath.environment(environment), **{rundir.DIRECTORY_VARIABLE: "/nowhere"})
    code = "import sys; print(sys.modules['sitecustomize'].__file__, 'torch' in sys.modules, 'zmq' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["mine", f"{tmp_path}/sitecustomize.py False False"]
