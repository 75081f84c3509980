"""Ranks that a program spawns itself, and the processes that these start in turn."""

from __future__ import annotations

from pathlib import Path

from support.harness import DEADLINE_S, ddptop

from ddptop.agent.run import rundir

WORKERS = '''
"""A spawned rank that draws two epochs, each with data workers; then it is killed."""
import os, signal, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp

def rank(number, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=1)
    data = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4, num_workers=1)
    for _ in range(2):
        assert len(list(data)) == 2
        run = os.environ["DDPTOP_RUN_DIR"]
        with open(f"{run}/ranks/{number}.json") as record, open(f"{folder}/seen", "a") as seen:
            sockets = all(os.path.exists(f"{run}/{number}.{kind}") for kind in ("pub", "cmd"))
            print(int('"ended":null' in record.read() and sockets), file=seen)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    mp.spawn(rank, sys.argv[1:], nprocs=1)
'''


def test_data_workers_say_nothing_of_their_rank(tmp_path: Path) -> None:
    """After each epoch, when its workers have ended, the rank's record has no end; a killed run has not finished."""
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    words = ("launch", "--start", "spawn", "--world", "1", "--name", "workers", str(script), "--", str(tmp_path))
    done = ddptop(*words, cwd=tmp_path, timeout=4 * DEADLINE_S)
    assert done.returncode != 0, done.stdout
    assert (tmp_path / "seen").read_text() == "1\n1\n", done.stderr
    directory = rundir.find("workers")
    assert directory.read().state == "failed"
    assert directory.members()[0].ended is None
