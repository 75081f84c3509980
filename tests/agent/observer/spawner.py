"""What a test needs of torchrun: start the ranks under the agent, hand TERM on, end all when one fails, start anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time


def main() -> int:
    """Run `python spawner.py WORLD SCRIPT ARGS…`; RESTARTS in the environment is `--max-restarts`."""
    told: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    for generation in range(int(os.environ.get("RESTARTS", "0")) + 1):
        if _train(generation, told):
            return 0
        if told:
            break
    return 1


def _train(generation: int, told: list[bool]) -> bool:
    """Run one generation of ranks to its end, and say whether it went well."""
    world, target = int(sys.argv[1]), sys.argv[2:]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "ddptop.agent", *target],
            env=os.environ
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
            | {"TORCHELASTIC_RESTART_COUNT": str(generation)},
        )
        for rank in range(world)
    ]
    while not told:
        codes = [rank.poll() for rank in ranks]
        if all(code == 0 for code in codes):
            return True
        if any(codes):
            break
        time.sleep(0.02)
    for rank in ranks:
        rank.terminate()
    for rank in ranks:
        rank.wait()
    return False


if __name__ == "__main__":
    sys.exit(main())
