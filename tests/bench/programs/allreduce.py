"""All-reduce by hand against the backend's own: `python tests/bench/programs/allreduce.py [--quick]`.

Time and bandwidth by size and number of ranks, as `collectives` measures them: bandwidth is the
2(N-1)/N of the bytes that every rank has to send over the time, and the wanted ratio of the
ring's time to the backend's, from 16 MB on, at most 1.5.  Then the step of `resnet34` in its parts,
for each way to sync the gradients: several rounds in turn, and of each part the median.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from statistics import median

from ddptop.trainers import CATALOGUE

WANTED_RATIO = 1.5
LARGE = 16 << 20
PART = re.compile(r"forward ([\d.]+) ms, backward ([\d.]+) ms, sync ([\d.]+) ms")


def run(program: str, world: int, *arguments: str) -> str:
    """Return what a program prints, its ranks spawned by itself."""
    command = [sys.executable, "-m", CATALOGUE[program].module, "--start", "spawn", "--world", str(world)]
    return subprocess.run([*command, *arguments], check=True, capture_output=True, text=True).stdout


def all_reduces(worlds: list[int], sizes: list[str], repeat: int) -> None:
    """Print the table of each world, and the ring's time over the backend's where tensors are large."""
    for world in worlds:
        table = run("collectives", world, "--sizes", *sizes, "--repeat", str(repeat)).partition("\n\n")[2]
        print(f"{world} ranks\n{table}", end="")
        for line in table.splitlines()[1:]:
            size = int(line.split()[0].replace(",", ""))
            if size >= LARGE:
                ring, backend = (float(ms) for ms in re.findall(r"([\d.]+) ms", line)[2:])
                verdict = "as wanted" if ring <= WANTED_RATIO * backend else f"above {WANTED_RATIO}"
                print(f"  {size >> 20} MB: ring / backend {ring / backend:.2f}, {verdict}")
        print(flush=True)


def syncs(world: int, rounds: int, steps: int) -> None:
    """Print the parts of a step of resnet34 for each way to sync."""
    parts: dict[str, list[list[float]]] = {"naive": [], "ring": [], "native": [], "ddp": []}
    for _ in range(rounds):
        for sync, found in parts.items():
            out = run("resnet34", world, "--sync", sync, "--steps", str(steps), "--samples", "640")
            found.append([float(ms) for ms in PART.findall(out)[-1]])
    print(f"resnet34, {world} ranks, ms a step\n{'sync':<8}{'forward':>9}{'backward':>10}{'sync':>8}{'in all':>9}")
    for sync, found in parts.items():
        forward, backward, reduce = (median(part) for part in zip(*found, strict=True))
        print(f"{sync:<8}{forward:>9.1f}{backward:>10.1f}{reduce:>8.1f}{forward + backward + reduce:>9.1f}")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two ranks, few sizes: to see that it works")
    quick = parser.parse_args().quick
    if quick:
        all_reduces([2], ["1K", "16M"], 3)
        syncs(2, 1, 10)
    else:
        all_reduces([2, 3, 4], ["1K", "16K", "256K", "1M", "4M", "16M", "64M"], 9)
        syncs(2, 3, 40)


if __name__ == "__main__":
    main()
