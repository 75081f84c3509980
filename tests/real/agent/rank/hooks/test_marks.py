"""A script that starts its own ranks, launched as one that does not."""

from __future__ import annotations

from pathlib import Path

from support.harness import ddptop, write_script

SPAWNS = """
import torch.multiprocessing as mp

def main(rank):
    pass

if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
"""


def test_a_script_that_starts_its_own_ranks_is_told_how_they_are_seen(tmp_path: Path) -> None:
    """Under the runner alone nothing of them is: the line to type stands among the events."""
    path = write_script(tmp_path, SPAWNS)
    launched = ddptop("launch", "--plain", "--world", "1", str(path), cwd=tmp_path)
    events = ddptop("events", launched.stdout.split()[-1]).stdout
    assert f"`ddptop launch --start spawn --world 2 {path}` shows them as ranks" in events
