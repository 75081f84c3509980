"""Pause, step and resume a run again and again from this host: `python cycles.py RUN CYCLES SEED FOLDER WORLD`.

Prints the seconds that each pause took. Where each rank stands is told by the script's own count in FOLDER.
"""

from __future__ import annotations

import random
import re
import struct
import sys
import time
from pathlib import Path

from ddptop.agent import wire
from ddptop.agent.control.caller import ask
from ddptop.agent.run import rundir

LONGEST_RUN_S = 0.3
STEPPED = 0.3
"""Share of the pauses from which a few steps are made."""


def _counts(folder: Path, world: int) -> list[int]:
    return [struct.unpack("<q", (folder / f"count-{rank}").read_bytes())[0] for rank in range(world)]


def main() -> None:
    """Do what the arguments say; fail at the first thing that does not hold."""
    name, cycles, text, shared, ranks = sys.argv[1:]
    seed, folder, world = random.Random(text), Path(shared), int(ranks)
    directory = rundir.find(name)
    for _ in range(int(cycles)):
        time.sleep(seed.uniform(0, LONGEST_RUN_S))
        began = time.perf_counter()
        said = ask(directory, wire.Act(1, "pause", "tests")).text
        took = time.perf_counter() - began
        found = re.search(r"step ([\d,]+)", said)
        assert found, said
        step = int(found.group(1).replace(",", ""))
        assert _counts(folder, world) == [step] * world, f"{said}; the ranks are at {_counts(folder, world)}"
        if seed.random() < STEPPED:
            steps = seed.randint(1, 5)
            said = ask(directory, wire.Act(1, "step", "tests", steps)).text
            step += steps
            assert _counts(folder, world) == [step] * world, f"{said}; the ranks are at {_counts(folder, world)}"
        ask(directory, wire.Act(1, "resume", "tests"))
        deadline = time.monotonic() + 30
        while min(_counts(folder, world)) <= step:
            assert time.monotonic() < deadline, f"does not go on from {step}"
            time.sleep(0.001)
        print(f"{took:.4f}", flush=True)


if __name__ == "__main__":
    main()
