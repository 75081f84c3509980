"""What a test needs of torchrun: start the ranks under the agent, hand TERM on, end all when one fails, start anew.

The ranks are forks of this process, so that the agent is imported once for all of them; with EXEC in the environment
each of them is a Python of its own, as those of torchrun are.
"""

from __future__ import annotations

import os
import signal
import sys
import time

EXEC = "EXEC" in os.environ
if not EXEC:
    from ddptop.agent import __main__ as runner


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
    world = int(sys.argv[1])
    ranks = {_start(rank, world, generation) for rank in range(world)}
    well = True
    while ranks and well and not told:
        pid, status = os.waitpid(-1, os.WNOHANG)
        ranks.discard(pid)
        well = status == 0
        time.sleep(0 if pid else 0.02)
    for pid in ranks:
        os.kill(pid, signal.SIGTERM)
    for pid in ranks:
        os.waitpid(pid, 0)
    return well and not ranks


def _start(rank: int, world: int, generation: int) -> int:
    # No rank is to take the signal as this process does.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    if pid := os.fork():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        return pid
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(generation)
    if EXEC:
        os.execv(sys.executable, [sys.executable, "-m", "ddptop.agent", *sys.argv[2:]])
    sys.argv[:2] = [runner.__file__]
    runner.main()
    sys.exit()


if __name__ == "__main__":
    sys.exit(main())
