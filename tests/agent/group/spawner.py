"""What a test needs of torchrun: start the ranks under the agent, hand TERM on, end all when one fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time


def main() -> int:
    """Run `python spawner.py WORLD SCRIPT ARGS…`."""
    world, target = int(sys.argv[1]), sys.argv[2:]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "ddptop.agent", *target],
            env=os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)},
        )
        for rank in range(world)
    ]
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    while not told:
        codes = [rank.poll() for rank in ranks]
        if all(code == 0 for code in codes):
            return 0
        if any(codes):
            break
        time.sleep(0.02)
    for rank in ranks:
        rank.terminate()
    for rank in ranks:
        rank.wait()
    return 1


if __name__ == "__main__":
    sys.exit(main())
