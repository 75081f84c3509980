"""What a rank pays for looks at its training: `python tests/bench/diagnoses/looks.py [--rounds 60] [--ms 10]`.

A process that is a whole group trains without a pause, in steps of about so many ms: a third of it Python, the rest
torch.  In short blocks, in another order in each round, it is asked to look, to look for the modules of backward
passes too, is not asked, and is not asked again (A/A).  Printed are the medians of the ratios of step times within a
round, by the wall, which has in it the waits for the interpreter lock, and by the CPU time of the training thread; and
how often it was looked at in a second, and the CPU time of the agent's thread for one glance, for which the training
cannot have the interpreter lock.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Final

KINDS: Final = ("off", "again", "looks", "modules")
BLOCK_S: Final = 0.15


def measure(rounds: int, ms: float) -> tuple[dict[str, list[tuple[float, float]]], float, float]:
    """Return wall and CPU time of a step in ms, by kind and round; glances in a second, and us of one."""
    from ddptop.agent.rank.hooks import patches
    from ddptop.agent.rank.session import Session
    from ddptop.agent.run import rundir

    directory = rundir.create(rundir.Run("l", "l", "l.py", (), 1, "gloo", "cpu", time.time_ns(), launched=True))
    session = Session(directory, run_id="l", program="l.py", log=None)
    session.open()
    import torch
    from torch import nn

    torch.set_num_threads(1)
    patches.install_with_torch(session)
    meeting = f"file://{directory.path.parent}/meet"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    ddp = nn.parallel.DistributedDataParallel(nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)]))
    optimizer, inputs = torch.optim.SGD(ddp.parameters(), lr=1e-4), torch.randn(64, 256)
    words = [str(number) for number in range(200)]

    def python() -> None:
        for _ in range(100):
            "".join(sorted(words, key=len))

    def tensors() -> None:
        optimizer.zero_grad(set_to_none=True)
        ddp(inputs).square().mean().backward()

    def took(count: int, *parts: tuple[int, Callable[[], object]]) -> tuple[float, float]:
        wall, thread = time.perf_counter_ns(), time.thread_time_ns()
        for _ in range(count):
            for times_, part in parts:
                for _ in range(times_):
                    part()
        return (time.perf_counter_ns() - wall) / count / 1e6, (time.thread_time_ns() - thread) / count / 1e6

    def usual(share: float, part: Callable[[], object]) -> tuple[int, Callable[[], object]]:
        """Return how often a part is to be done so that it has a share of a step: a fixed amount of work."""
        return max(1, round(ms * share / statistics.median(took(1, (1, part))[1] for _ in range(30)))), part

    parts = usual(1 / 3, python), usual(2 / 3, tensors), (1, optimizer.step)
    length = statistics.median(took(1, *parts)[1] for _ in range(10))
    steps = max(4, round(BLOCK_S * 1e3 / length))

    looking, order, token = session.diagnoses.looking, random.Random(1), 0
    glances = seconds = 0.0
    glance = looking.glance
    counted: list[int] = []

    def counting() -> None:
        before, began = len(looking._glances), time.thread_time_ns()
        glance()
        if len(looking._glances) > before:
            counted.append(time.thread_time_ns() - began)

    looking.glance = counting  # type: ignore[method-assign]
    times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    kinds = [*KINDS]
    for _ in range(rounds):
        order.shuffle(kinds)
        for kind in kinds:
            if kind in ("looks", "modules"):
                token += 1
                looking.ask(token, modules=kind == "modules")
                # The agent's thread wakes ten times a second, and sees then that it is to look.
                took(max(1, round(120 / length)), *parts)
                before, began = len(counted), time.perf_counter()
                times[kind].append(took(steps, *parts))
                glances, seconds = glances + len(counted) - before, seconds + time.perf_counter() - began
                looking._is_looking = False
                session.diagnoses.workers.end()
                session.diagnoses.modules.end()
            else:
                took(max(1, round(120 / length)), *parts)
                times[kind].append(took(steps, *parts))
    torch.distributed.destroy_process_group()
    session.close(0, None, None)
    assert not session.faults.count, session.faults.last
    return times, glances / seconds, statistics.median(counted) / 1e3


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--ms", type=float, default=10.0, help="ms of a step")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as folder:
            own = {"DDPTOP_RUNTIME_DIR": folder, "OMP_NUM_THREADS": "1"}
            own |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
            sys.exit(subprocess.run([sys.executable, *sys.argv], env=os.environ | own, check=False).returncode)
    times, rate, us = measure(options.rounds, options.ms)
    wall, thread = (statistics.median(each[index] for each in times["off"]) for index in range(2))
    print(f"a step without looks: {wall:.1f} ms by the wall, {thread:.1f} ms of the thread")
    print(f"{rate:.0f} glances a second, {us:.0f} us of the agent's thread each: {rate * us / 1e4:.2f} % of its time")
    for kind in KINDS[1:]:
        for index, clock in enumerate(("wall", "thread")):
            ratios = [a[index] / b[index] for a, b in zip(times[kind], times["off"], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            print(f"  {kind:6} {clock:7} {middle:.4f} (quartiles {low:.4f} {high:.4f})")


if __name__ == "__main__":
    main()
