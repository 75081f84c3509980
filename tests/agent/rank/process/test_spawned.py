"""Ranks that a program spawns itself, and the processes that these start in turn."""

from __future__ import annotations

from pathlib import Path

from support.harness import DEADLINE_S, ddptop

from ddptop.agent.run import rundir

WORKERS = '''
"""Two spawned ranks that train two epochs, each with data workers; then rank 1 is killed."""
import os, signal, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp

def rank(number, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4, num_workers=1)
    for _ in range(2):
        for batch in data:
            model(batch).sum().backward()
            optimizer.step()
        run = os.environ["DDPTOP_RUN_DIR"]
        with open(f"{run}/ranks/{number}.json") as record, open(f"{folder}/seen-{number}", "a") as seen:
            sockets = all(os.path.exists(f"{run}/{number}.{kind}") for kind in ("pub", "cmd"))
            print(int('"ended":null' in record.read() and sockets), file=seen)
    dist.barrier()
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()

if __name__ == "__main__":
    mp.spawn(rank, sys.argv[1:], nprocs=2)
'''


def test_data_workers_say_nothing_of_their_rank(tmp_path: Path) -> None:
    """After each epoch, when its workers have ended, the rank's record has no end; a killed run has not finished."""
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    words = ("launch", "--start", "spawn", "--world", "2", "--name", "workers", str(script), "--", str(tmp_path))
    done = ddptop(*words, cwd=tmp_path, timeout=4 * DEADLINE_S)
    assert done.returncode != 0, done.stdout
    assert [(tmp_path / f"seen-{number}").read_text() for number in range(2)] == ["1\n1\n"] * 2, done.stderr
    directory = rundir.find("workers")
    assert directory.read().state == "failed"
    assert directory.members()[1].ended is None
