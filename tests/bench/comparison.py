"""How often `ddptop compare` is right, by pairs that are simulated from recorded runs, and by pairs of real ones.

    python tests/bench/comparison.py RUN ...           pairs drawn in blocks from the steps of each of these runs
    python tests/bench/comparison.py --real NAME ...   all pairs among the runs whose names begin like this

A pair of the first kind is twice as many steps of one run, drawn in blocks of neighbours, so that drifts, bursts and
the other rank's delays come along; the second of them has one phase of all ranks longer by a part of the step, or not.
"""

from __future__ import annotations

import argparse
import itertools
import re
from dataclasses import replace

import numpy as np

from ddptop.agent.client import runs
from ddptop.agent.client.comparison import compared, reading
from ddptop.agent.client.comparison.measured import Measured, steady

PAIRS = 100
BLOCK = 20
"""Neighbouring steps that are drawn together."""
PARTS = (0.0, 0.05)
PHASE = "backward"


def drawn(run: Measured, steps: int, random: np.random.Generator) -> Measured:
    """Return a run of so many steps, drawn in blocks from the usual steps of another."""
    where = np.flatnonzero(steady(run).where)
    starts = random.integers(0, len(where), (-(-steps // BLOCK), 1))
    chosen = where[((starts + np.arange(BLOCK)) % len(where)).ravel()[:steps]]
    values = {name: table[:, chosen] for name, table in run.values.items()}
    wall = np.nanmean(values["step"], axis=0) / 1e3
    # The numbers go on from behind a warm-up.
    return replace(
        run, steps=np.arange(steps) + 1000, at=1e9 + np.cumsum(wall), values=values, restarts=(), marks=(), newest=steps
    )


def slowed(run: Measured, part: float) -> Measured:
    """Return a run of which one phase of all ranks is longer by a part of the usual step."""
    more = part * np.nanmedian(run.values["step"])
    changed = {name: run.values[name] + more for name in ("step", PHASE)}
    return replace(run, values={**run.values, **changed})


def simulated(run: Measured, steps: int) -> str:
    """Return a row of the table."""
    cells = []
    for part in PARTS:
        random = np.random.default_rng(0)
        found, named, within = 0, 0, []
        for _ in range(PAIRS):
            one, other = drawn(run, steps, random), drawn(run, steps, random)
            told = compared.compare(one, slowed(other, part))
            found += told.outcome == "slower" if part else told.outcome not in ("slower", "faster")
            named += f": {PHASE}, all ranks" in told.verdict
            within += [float(each) for each in re.findall(r"± ([\d.]+)", told.verdict)]
        cells.append(f"{found}" + (f" ({named})" if part else "") + f" | {np.median(within):.1f} %")
    wall = np.nanmean(run.values["step"], axis=0)[steady(run).where]
    usual = np.median(wall)
    spread = np.median(np.abs(wall - usual)) * 1.4826 / usual
    return f"| {run.name}, {usual:.1f} ms ± {spread:.0%} | {steps:,} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--steps", type=int, nargs="*", default=[300, 1000, 3000])
    options = parser.parse_args()
    if not options.real:
        print(f"| run | steps | none told, of {PAIRS} | ± | + 5 % found (phase) | ± |")
        print("|---|---|---|---|---|---|")
        for name in options.runs:
            run = reading.read(runs.find(name), "bench")
            for steps in options.steps:
                print(simulated(run, steps), flush=True)
        return
    found = [run for run in runs.listed() if run.name.startswith(tuple(options.runs))]
    for one, other in itertools.combinations([reading.read(run, "bench") for run in found], 2):
        print(compared.compare(one, other).verdict)


if __name__ == "__main__":
    main()
