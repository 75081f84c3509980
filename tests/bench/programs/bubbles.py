"""Bubbles of pipelines, measured and in theory: `python tests/bench/programs/bubbles.py [--quick]`.

For each schedule and number of microbatches the share of a step in which a rank computes nothing,
over the steps of `pipeline`, whose ranks sleep as long as a device would compute.
"""

from __future__ import annotations

import argparse
import re

from allreduce import run

FOUND = re.compile(r"bubble ([\d.]+%) \(theory ([\d.]+%)\), microbatches held by rank ([\d ]+)")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two ranks, few steps: to see that it works")
    quick = parser.parse_args().quick
    world, steps = (2, 4) if quick else (4, 12)
    print(f"{world} ranks\n{'schedule':<12}{'microbatches':>13}{'measured':>10}{'theory':>8}   held by rank")
    for schedule in ("gpipe", "1f1b", "interleaved"):
        for microbatches in (1, 2, 4, 8, 16):
            arguments = ("--schedule", schedule, "--microbatches", str(microbatches), "--steps", str(steps))
            found = FOUND.search(run("pipeline", world, *arguments, "--batch-size", "64", "--device-ms", "8"))
            assert found is not None
            print(f"{schedule:<12}{microbatches:>13}{found[1]:>10}{found[2]:>8}   {found[3]}", flush=True)


if __name__ == "__main__":
    main()
